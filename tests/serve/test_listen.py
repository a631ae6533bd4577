"""A service on a socket: what comes before a body, behind it and instead of it."""

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.serve.conftest import connected, on_a_port, request

from rollmill.serve.app import App, Bounds, Route
from rollmill.serve.http import EVENTS, Answer, Request
from rollmill.serve.http import json as answer_json
from rollmill.serve.listen import Listener
from rollmill.serve.openapi import Operation

SLOW = Bounds(head=2000, head_s=0.2, body=100_000, body_idle_s=0.2, body_s=5.0)


class Trial:
    """A service with one route that answers at once, one that streams, and one that plays until it is ended."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self.heard: list[bytes] = []
        self.playing, self.ended = asyncio.Event(), asyncio.Event()
        nothing = Operation("Tried")
        routes = [
            Route("POST", "/echo", self._echo, nothing),
            Route("POST", "/events", self._events, nothing),
            Route("POST", "/run", self._run, nothing, long=True),
        ]
        self.app = App("tested", routes, bounds=bounds)

    async def _echo(self, request: Request) -> Answer:
        self.heard.append(request.body)
        return answer_json(len(request.body))

    async def _events(self, _: Request) -> Answer:
        async def lines():
            for number in range(3):
                yield b"data: %d\n\n" % number

        return Answer(content_type=EVENTS, stream=lines())

    async def _run(self, _: Request) -> Answer:
        self.playing.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()
        return Answer()


@asynccontextmanager
async def wired(bounds: Bounds = Bounds()):
    trial = Trial(bounds)
    async with on_a_port(trial.app) as port, connected(port) as wire:
        yield trial, wire


async def test_requests_one_after_the_other_on_one_connection():
    async with wired() as (trial, wire):
        for body in (b"{}", b"", b"[1]"):
            await wire.write(request("POST", "/echo", body))
            assert (await wire.read()).json == len(body)
        assert trial.heard == [b"{}", b"", b"[1]"]


async def test_requests_that_do_not_wait_for_each_other_are_answered_in_order():
    async with wired() as (_, wire):
        await wire.write(b"".join(request("POST", "/echo", b" " * size) for size in range(50)))
        assert [(await wire.read()).json for _ in range(50)] == list(range(50))


async def test_a_body_in_chunks():
    async with wired() as (trial, wire):
        await wire.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        await wire.write(b"1\r\n{\r\n1\r\n}\r\n0\r\nX-Trailer: y\r\n\r\n")
        assert (await wire.read()).json == 2
        assert trial.heard == [b"{}"]


async def test_a_stream_comes_in_chunks():
    async with wired() as (_, wire):
        await wire.write(request("POST", "/events"))
        answer = await wire.read()
        assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_an_answer_names_no_software_and_no_other_host():
    async with wired() as (_, wire):
        await wire.write(request("POST", "/echo"))
        assert (await wire.read()).headers.keys() == {"content-type", "content-length"}


async def test_who_waits_for_a_100_gets_it_unless_the_body_is_not_wanted():
    async with wired() as (_, wire):
        await wire.write(request("POST", "/echo", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 2"))
        assert (await wire.read()).status == 100
        await wire.write(b"{}")
        assert (await wire.read()).json == 2
        await wire.write(request("POST", "/nope", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 2"))
        assert (await wire.read()).status == 404


NO_REQUESTS = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"nonsense\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET ?x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -2\r\n\r\n{}",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
]


async def test_what_is_no_request_is_refused_and_the_connection_closed():
    trial = Trial(SLOW)
    async with on_a_port(trial.app) as port:
        for data in NO_REQUESTS:
            async with connected(port) as wire:
                await wire.write(data)
                assert (await wire.read()).status == 400, data
                assert await wire.ended()
    assert trial.heard == []


async def test_paths_that_lead_nowhere():
    async with wired() as (_, wire):
        for path in ("*", "/%2e%2e/echo", "/echo%2f", "/%ff", "/%00", "/" + "x" * 1000, "/echo%20"):
            await wire.write(request("POST", path))
            assert (await wire.read()).status == 404


async def test_an_upgrade_is_not_taken_and_the_request_is_answered():
    async with wired() as (_, wire):
        # So Java's own client asks for HTTP/2.
        offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
        for body in (b"{}", b'{"Upgrade:": 1}'):
            await wire.write(request("POST", "/echo", body, *offer))
            assert (await wire.read()).json == len(body)


async def test_a_websocket_is_not_opened():
    async with wired() as (_, wire):
        lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x")
        await wire.write(request("GET", "/", b"", *lines))
        assert (await wire.read()).status == 200


async def test_a_body_shorter_than_it_says():
    async with wired(SLOW) as (trial, wire):
        await wire.write(request("POST", "/echo", b"{}").replace(b"Length: 2", b"Length: 9"))
        answer = await wire.read()
        assert (answer.status, answer.code, trial.heard) == (408, "slow", [])


async def test_a_body_longer_than_it_says_is_no_second_request():
    async with wired(SLOW) as (_, wire):
        await wire.write(request("POST", "/echo", b"{} and more").replace(b"Length: 11", b"Length: 2"))
        assert (await wire.read()).status == 400
        assert await wire.ended()


async def test_a_client_that_hangs_up_in_its_body_is_forgotten():
    async with wired(SLOW) as (trial, wire):
        await wire.write(request("POST", "/echo", b"{}").replace(b"Length: 2", b"Length: 9"))
        wire.close()
        await asyncio.sleep(0.05)
        assert trial.heard == []


async def test_headers_that_do_not_come():
    async with wired(SLOW) as (_, wire):
        await wire.write(b"POST /echo HTTP/1.1\r\nHost:")
        answer = await wire.read()
        assert (answer.status, answer.code) == (408, "slow")
        assert await wire.ended()


async def test_headers_that_come_drop_by_drop():
    async with wired(SLOW) as (_, wire):
        dripping = asyncio.create_task(drip(wire, b"X-Slow: y\r\n", first=b"GET / HTTP/1.1\r\n"))
        assert (await wire.read()).status == 408
        dripping.cancel()


async def test_a_connection_that_says_nothing_is_closed():
    async with wired(SLOW) as (_, wire):
        assert (await wire.read()).status == 408
        assert await wire.ended()


async def test_headers_without_an_end():
    async with wired(SLOW) as (_, wire):
        await wire.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Long: y\r\n" * 300)
        answer = await wire.read()
        assert (answer.status, answer.code) == (431, "too_large")
        assert await wire.ended()


async def test_one_line_without_an_end():
    trial = Trial(SLOW)
    async with on_a_port(trial.app) as port:
        for start in (b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\nX"):
            async with connected(port) as wire:
                await wire.write(start + b"x" * 5000)
                assert (await wire.read()).status in (400, 431)
                assert await wire.ended()


async def test_trailers_and_chunk_extensions_without_an_end():
    for tail in (b"0\r\n" + b"X-Long: y\r\n" * 300, b"1;" + b"x" * 5000):
        async with wired(SLOW) as (trial, wire):
            await wire.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            await asyncio.sleep(0.05)
            await wire.write(tail)
            assert await wire.ended()
            assert trial.heard == []


async def test_many_small_requests_are_no_large_head():
    async with wired(SLOW) as (_, wire):
        for _ in range(100):
            await wire.write(request("GET", "/"))
            assert (await wire.read()).status == 200


async def test_a_body_that_is_too_long_is_answered_before_it_has_come_and_not_waited_for():
    async with wired(SLOW) as (trial, wire):
        await wire.write(request("POST", "/echo", b" ").replace(b"Length: 1", b"Length: 100000000"))
        answer = await wire.read()
        assert (answer.status, answer.code) == (413, "too_large")
        dripping = asyncio.create_task(drip(wire, b" "))
        assert await wire.ended()
        dripping.cancel()
        assert trial.heard == []


async def test_a_body_of_64_mib():
    async with wired() as (_, wire):
        writing = asyncio.create_task(wire.write(request("POST", "/echo", b" " * 2**26)))
        assert (await wire.read()).json == 2**26
        await writing


async def test_one_byte_more_than_64_mib_and_no_length():
    async with wired() as (trial, wire):
        await wire.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        writing = asyncio.create_task(wire.write(b"%x\r\n" % (2**26 + 1) + b" " * (2**26 + 1)))
        assert (await wire.read()).status == 413
        assert trial.heard == []
        writing.cancel()


async def test_a_client_that_goes_away_ends_what_plays_for_it():
    async with wired() as (trial, wire):
        await wire.write(request("POST", "/run"))
        await trial.playing.wait()
        wire.close()
        await trial.ended.wait()


async def test_who_waits_for_a_long_answer_is_not_slow():
    async with wired(SLOW) as (trial, wire):
        await wire.write(request("POST", "/run") + b"GET / HTT")
        await trial.playing.wait()
        await asyncio.sleep(0.5)
        assert not trial.ended.is_set()


async def test_a_service_that_stops_tells_who_waits_and_says_nothing_else(caplog):
    trial = Trial()
    async with AsyncExitStack() as stack:
        async with on_a_port(trial.app) as port:
            wire = await stack.enter_async_context(connected(port))
            await wire.write(request("POST", "/run"))
            await trial.playing.wait()
        answer = await wire.read()
        assert await wire.ended()
    assert (answer.status, answer.code) == (503, "stopping")
    assert trial.ended.is_set()
    assert "Traceback" not in caplog.text


async def test_its_sockets_are_closed_also_where_its_life_does_not_begin():
    @asynccontextmanager
    async def life():
        raise RuntimeError("no database")
        yield

    listening = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(RuntimeError, match="no database"):
        async with Listener(App("tested", [], life=life), [listening]):
            pass
    assert listening.fileno() == -1


async def drip(wire, piece: bytes, *, first: bytes = b"") -> None:
    await wire.write(first)
    while True:
        try:
            await wire.write(piece)
        except ConnectionError:
            return
        await asyncio.sleep(0.02)
