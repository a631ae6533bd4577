"""Where the environment names a proxy: what goes through it, what goes past it, and what it may do wrong."""

import asyncio
import base64
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rollmill.errors import ConfigError, ModelError
from rollmill.models.http import HttpClient
from rollmill.net.connection import CallDeadlines

Serve = Callable[..., Awaitable[Any]]
MODEL = "http://model.test/v1"


@dataclass
class Proxy:
    """A proxy that leads everything to one server, whatever it was asked for."""

    port: int
    asked: list[str] = field(default_factory=list)
    """The first line of each request, and its credentials where there are some."""
    answer: bytes = b""
    """What it says instead of passing anything on."""
    url: str = ""

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._lead(reader, writer)
        writer.transport.abort()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *headers = head.decode().split("\r\n")
        self.asked.append(line)
        self.asked += [header for header in headers if header.startswith("Proxy-Authorization")]
        if self.answer:
            writer.write(self.answer)
            await reader.read()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.port)
        if line.startswith("CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            server_writer.write(head)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(_pipe(reader, server_writer)),
                    asyncio.ensure_future(_pipe(server_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            server_writer.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while some := await reader.read(2**16):
            writer.write(some)
            await writer.drain()


@asynccontextmanager
async def proxy(url: str, **options: Any) -> AsyncIterator[Proxy]:
    """A proxy in front of the server at `url`."""
    leads = Proxy(int(url.split(":")[2].partition("/")[0]), **options)
    meeting: set[asyncio.Task[None]] = set()

    def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        meeting.add(asyncio.ensure_future(leads.meet(reader, writer)))

    listener = await asyncio.start_server(meet, "127.0.0.1", 0)
    leads.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield leads
    finally:
        listener.close()
        for task in meeting:
            task.cancel()
        await asyncio.gather(*meeting, return_exceptions=True)


async def ask(url: str, **options: Any) -> bytes:
    async with asyncio.timeout(20), HttpClient(url, **options) as client:
        return await client.post("/responses", b"{}")


async def fault(url: str, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(url, **options)
    return caught.value


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY", "all_proxy"])
async def test_a_call_goes_through_the_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    server = await serve({"fine": True})
    async with proxy(server.url) as leads:
        monkeypatch.setenv(name, leads.url)
        assert await ask(MODEL, headers={"api-key": "k"}, query={"api-version": "v"}) == b'{"fine": true}'
    assert leads.asked == ["POST http://model.test/v1/responses?api-version=v HTTP/1.1"]
    (heard,) = server.heard
    assert (heard.body, heard.headers["api-key"], heard.headers["Host"]) == (b"{}", "k", "model.test")
    assert "Accept-Encoding" not in heard.headers


async def test_the_proxy_is_told_who_asks_and_nobody_else_is(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve((500, b"no"))
    async with proxy(server.url) as leads:
        monkeypatch.setenv("http_proxy", leads.url.replace("//", "//me:secret@"))
        error = await fault(MODEL)
    assert leads.asked[1:] == [f"Proxy-Authorization: Basic {base64.b64encode(b'me:secret').decode()}"]
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("url", "past"),
    [
        ("http://model.test/v1", "model.test"),
        ("http://model.test/v1", ".test,other.example"),
        ("http://model.test:81/v1", "model.test:81"),
        ("http://model.test/v1", "*"),
    ],
)
async def test_what_the_environment_excepts_goes_past_the_proxy(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, url: str, past: str
) -> None:
    server = await serve({})
    async with proxy(server.url) as leads:
        monkeypatch.setenv("http_proxy", leads.url)
        monkeypatch.setenv("no_proxy", past)
        # Nobody has this name but the proxy.
        assert (await fault(url)).failure.kind == "transport"
    assert leads.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_this_machine_is_reached_without_a_proxy(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    server = await serve({})
    async with proxy(server.url) as leads:
        monkeypatch.setenv("http_proxy", leads.url)
        assert await ask(server.url.replace("127.0.0.1", host)) == b"{}"
    assert leads.asked == []


async def test_tls_goes_through_a_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem", "-subj", "/CN=model.test"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *curve, *made, "-addext", "subjectAltName=DNS:model.test"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            heard.append(await reader.readuntil(b"{}"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
            await writer.drain()
        writer.transport.abort()

    heard: list[bytes] = []
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server, proxy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as leads:
        monkeypatch.setenv("https_proxy", leads.url)
        failure = (await fault("https://model.test/v1")).failure
        assert failure.kind == "transport"
        assert "certificate verify failed" in failure.detail
        assert heard == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert await ask("https://model.test/v1") == b"[]"
    assert leads.asked == ["CONNECT model.test:443 HTTP/1.1"] * 2
    assert heard[0].startswith(b"POST /v1/responses HTTP/1.1\r\n")


async def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    failure = (await fault(MODEL)).failure
    assert failure.kind == "transport"
    assert failure.detail == f"{MODEL}/responses: Connection refused, through the proxy http://127.0.0.1:9"


async def test_a_proxy_that_refuses_a_tunnel_is_a_fault_of_the_way(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve({})
    async with proxy(server.url, answer=b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as leads:
        monkeypatch.setenv("https_proxy", leads.url)
        failure = (await fault("https://model.test/v1")).failure
    assert failure.kind == "transport"
    assert "403" in failure.detail


@pytest.mark.parametrize(
    ("said", "limits", "waited_for"),
    [
        (b"HTTP/1.1", {"connect_s": 0.1, "first_byte_s": 0.1}, "the first byte"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{", {"idle_s": 0.1}, "the rest of the answer"),
    ],
)
async def test_deadlines_hold_behind_a_proxy(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, said: bytes, limits: dict[str, float], waited_for: str
) -> None:
    server = await serve({})
    async with proxy(server.url, answer=said) as leads:
        monkeypatch.setenv("http_proxy", leads.url)
        failure = (await fault(MODEL, deadlines=CallDeadlines(**limits))).failure
    assert failure.kind == "timeout"
    assert f"gave up waiting for {waited_for}, through the proxy" in failure.detail


async def test_an_answer_without_end_is_cut_off_behind_a_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.models.http.MAX_BODY", 2**20)
    server = await serve(b" " * (2**20 + 1))
    async with proxy(server.url) as leads:
        monkeypatch.setenv("http_proxy", leads.url)
        failure = (await fault(MODEL)).failure
    assert (failure.kind, failure.detail) == ("malformed", f"{MODEL}/responses answered more than 1 MiB")


async def test_a_proxy_of_another_kind_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://me:secret@127.0.0.1:1080")
    with pytest.raises(ConfigError, match=r"ALL_PROXY names socks5://127\.0\.0\.1:1080: .* NO_PROXY"):
        await ask(MODEL)


async def test_the_check_goes_through_the_proxy_too(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve({})
    async with proxy(server.url) as leads:
        monkeypatch.setenv("http_proxy", leads.url)
        async with HttpClient(MODEL) as client:
            await client.check("start it")
    assert leads.asked == ["GET http://model.test/v1/models HTTP/1.1"]
