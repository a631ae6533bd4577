"""The way to a service: what never reached it is sent again until it is there, everything else is sent once."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager

import pytest
from tests.net.conftest import no_proxy
from tests.serve import other as others
from tests.serve.other import Other, listening

import rollmill as rm
from rollmill.model import Secret
from rollmill.net.connection import CallDeadlines, LateError, WireError
from rollmill.serve import client as clients
from rollmill.serve.client import Client

__all__ = ["no_proxy"]

QUICK = CallDeadlines(connect_s=2, first_byte_s=0.2, idle_s=0.2, total_s=5)
OK = others.answered({"status": "ok"})


@asynccontextmanager
async def client_of(*answers, **options):
    async with listening(Other(*answers)) as other, Client(other.url, **options) as client:
        yield other, client


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


async def test_requests_share_a_connection():
    async with client_of(OK) as (other, client):
        for _ in range(3):
            assert (await client.post("/run", b"{}")).status == 200
        assert (await client.get("/")).body == b'{"status": "ok"}'
        assert (len(other.heard), other.connections) == (4, 1)


async def test_the_token_and_the_headers_of_a_request():
    async with client_of(OK, token=Secret("token-of-tests")) as (other, client):
        await client.post("/x", b"{}", {"Cookie": "a=b", "X-Call": "c✓", "X-Bad": "a\r\nX-Evil: 1", "X-Nul": "\0"})
    head = other.heard[0].head
    assert "Authorization: Bearer token-of-tests\r\n" in head
    assert "Content-Type: application/json\r\n" in head
    assert "Cookie: a=b\r\n" in head
    assert "X-Call: c?\r\n" in head
    assert "Evil" not in head
    assert "X-Nul" not in head


@pytest.mark.parametrize(
    "answer", [others.hangs_up, others.hangs_up_half_way, others.speaks_another_language], ids=lambda one: one.__name__
)
async def test_what_was_taken_is_never_sent_again(answer):
    async with client_of(answer) as (other, client):
        with pytest.raises(WireError) as error:
            await client.post("/run", b"{}")
        assert error.value.reached
        assert len(other.heard) == 1


async def test_nor_on_a_connection_that_had_served_before():
    async with client_of(OK, OK, others.hangs_up) as (other, client):
        for _ in range(2):
            await client.post("/run", b"{}")
        with pytest.raises(WireError) as error:
            await client.post("/run", b"{}")
        assert error.value.reached
        assert (len(other.heard), other.connections) == (3, 1)


async def test_a_server_that_accepts_and_drops():
    dropped = 0

    async def drop(reader, writer):
        nonlocal dropped
        dropped += 1
        writer.close()

    other = Other(OK)
    other.serve = drop
    async with listening(other), Client(other.url) as client:
        with pytest.raises(WireError) as error:
            await client.post("/run", b"{}")
    assert error.value.reached
    assert dropped == 1


async def test_a_connection_that_the_server_closed_at_rest_is_not_used_again():
    async with client_of(others.and_closes(OK)) as (other, client):
        for _ in range(3):
            assert (await client.post("/run", b"{}")).status == 200
            await asyncio.sleep(0.02)
        assert (len(other.heard), other.connections) == (3, 3)


async def test_nor_where_the_event_loop_was_too_busy_to_notice():
    closing = others.answered({})

    async def close_soon(line):
        await closing(line)
        line.writer.close()

    async with client_of(close_soon) as (other, client):
        for _ in range(3):
            assert (await client.post("/run", b"{}")).status == 200
            # The server has closed, and the client's loop has not come round since it read the answer.
            time.sleep(0.02)
        assert len(other.heard) == 3


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_a_service_that_is_not_there_is_waited_for(seconds):
    port = free_port()
    async with Client(f"http://127.0.0.1:{port}", wait_s=20) as client:
        asking = asyncio.create_task(client.post("/run", b"{}"))
        await asyncio.sleep(seconds)
        async with listening(Other(OK), port) as other:
            assert (await asking).status == 200
            assert len(other.heard) == 1


async def test_and_given_up_when_it_does_not_come():
    async with Client(f"http://127.0.0.1:{free_port()}", wait_s=0.3) as client:
        with pytest.raises(WireError, match="refused") as error:
            await client.get("/")
        assert not error.value.reached


async def test_a_name_that_nobody_has():
    async with Client("http://no-such-host.invalid:1", wait_s=0.1) as client:
        with pytest.raises(WireError) as error:
            await client.get("/")
        assert not error.value.reached


async def test_a_server_that_says_nothing_is_not_waited_for_for_ever():
    async with client_of(others.says_nothing, deadlines=QUICK) as (other, client):
        with pytest.raises(LateError, match="first byte") as error:
            await client.post("/run", b"{}")
        assert error.value.reached
        assert len(other.heard) == 1


async def test_an_answer_that_never_ends(monkeypatch):
    monkeypatch.setattr(clients, "MAX_BODY", 4 * 2**20)
    async with client_of(others.never_ends) as (_, client):
        with pytest.raises(WireError, match="more than 4 MiB"):
            await client.get("/")


async def test_who_does_not_wait_any_more_is_seen_to_leave():
    left = asyncio.Event()

    async def wait(line):
        await line.reader.read()
        left.set()

    async with client_of(wait) as (other, client):
        asking = asyncio.create_task(client.post("/run", b"{}"))
        while not other.heard:
            await asyncio.sleep(0.01)
        asking.cancel()
        await left.wait()


async def test_a_status_is_the_callers_to_judge():
    async with client_of(others.answered(b"<html>", 302, location="http://elsewhere.example/")) as (other, client):
        answer = await client.post("/run", b"{}")
        assert (answer.status, answer.body) == (302, b"<html>")
        assert other.paths == ["/run"]


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://x:y", "http://a b", "http://x:0"])
def test_urls_that_are_none(url):
    with pytest.raises(rm.ConfigError, match="expected http://HOST:PORT"):
        Client(url)


def test_a_token_that_no_header_can_carry():
    with pytest.raises(rm.ConfigError, match="access_token holds a line break"):
        Client("http://127.0.0.1:1", token=Secret("pasted\n"))


async def test_it_has_to_be_entered():
    with pytest.raises(rm.ConfigError, match="enter the client first"):
        await Client("http://127.0.0.1:1").get("/")
