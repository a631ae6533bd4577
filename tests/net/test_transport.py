"""Our own HTTP: where answers end, which connections are used again, and servers that do not behave."""

import asyncio
import base64
import contextlib
import gzip
import socket
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rollmill.errors import ConfigError, ModelError
from rollmill.models.http import HttpClient
from rollmill.net import pool
from rollmill.net.connection import CallDeadlines, Connection
from rollmill.net.pool import Origin
from rollmill.net.transport import Transport, request_head

MANY = 64 * 2**20


class Line:
    """One connection, as the server has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def hears(self) -> bytes:
        """The next request, whole."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        _, told, length = head.partition(b"Content-Length: ")
        return head + await self.reader.readexactly(int(length.split(b"\r\n")[0]) if told else 0)

    async def says(self, *pieces: bytes, every_s: float = 0.0) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(every_s)

    async def is_left(self) -> bytes:
        """What still comes until the client closes."""
        return await self.reader.read()


Play = Callable[[Line], Awaitable[None]]


@dataclass
class Server:
    url: str
    lines: int = 0
    heard: list[bytes] = field(default_factory=list)
    said: int = 0
    """How many connections it has seen, the bodies that it was sent, and how many bytes of a flood it got rid of."""
    used: list[int] = field(default_factory=list)
    """Which connection each of the bodies came by."""

    @property
    def by_name(self) -> str:
        return self.url.replace("127.0.0.1", "localhost")


@asynccontextmanager
async def serve(*plays: Play, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """A server whose n-th connection follows the n-th play, and the last one from then on; then it closes it."""
    playing: set[asyncio.Task[Any] | None] = set()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        playing.add(asyncio.current_task())
        play = plays[min(server.lines, len(plays) - 1)]
        server.lines += 1
        line, number = Line(reader, writer), server.lines
        hears = line.hears

        async def remembers() -> bytes:
            request = await hears()
            server.heard.append(request.partition(b"\r\n\r\n")[2])
            server.used.append(number)
            return request

        line.hears = remembers  # type: ignore[method-assign]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await play(line)
            writer.close()
            await writer.wait_closed()
        writer.transport.abort()

    listener = await asyncio.start_server(meet, host, 0, ssl=tls)
    name = f"[{host}]" if ":" in host else host
    server = Server(f"{'https' if tls else 'http'}://{name}:{listener.sockets[0].getsockname()[1]}/v1")
    try:
        yield server
    finally:
        listener.close()
        for task in filter(None, playing):
            task.cancel()
        await asyncio.gather(*filter(None, playing), return_exceptions=True)


def keeps(*answers: bytes) -> Play:
    """Answers a request after the other, and leaves the connection open."""

    async def play(line: Line) -> None:
        for answer in answers:
            await line.hears()
            await line.says(answer)
        await line.is_left()

    return play


def closes(*answers: bytes, every_s: float = 0.0) -> Play:
    """Hears a request, says these pieces, and closes."""

    async def play(line: Line) -> None:
        await line.hears()
        await line.says(*answers, every_s=every_s)

    return play


def stalls(*pieces: bytes, every_s: float = 0.0) -> Play:
    async def play(line: Line) -> None:
        await line.hears()
        await line.says(*pieces, every_s=every_s)
        await line.is_left()

    return play


def ok(body: bytes = b"{}", *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def gzipped(body: bytes) -> bytes:
    """The same bytes at any time: they are part of a test's name."""
    return gzip.compress(body, mtime=0)


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[HttpClient]:
    """Nothing here takes long; what does not end by itself fails."""
    async with asyncio.timeout(20), HttpClient(url, **options) as client:
        yield client


async def ask(client: HttpClient, body: bytes = b"{}") -> bytes:
    return await client.post("/responses", body)


async def fault(client: HttpClient, body: bytes = b"{}") -> tuple[str, str]:
    """The kind of a failed call, and what is said of it behind the URL."""
    with pytest.raises(ModelError) as caught:
        await ask(client, body)
    failure = caught.value.failure
    return failure.kind, failure.detail.partition("/responses")[2].removeprefix(":").strip()


# Where an answer ends.

FRAMES = {
    "a length": (ok(b'{"a": "b"}', "Server: s"), b'{"a": "b"}'),
    "no body": (ok(b""), b""),
    "chunks": (chunked(b'{"a":', b' "b"', b"}"), b'{"a": "b"}'),
    "chunks and trailers": (chunked(b"{}", trailer=b"Content-Encoding: gzip\r\nX: y\r\n"), b"{}"),
    "a chunk with an extension": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\n\r\n",
        b"{}",
    ),
    "interim answers": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nContent-Encoding: gzip\r\n\r\n" + ok(b"{}"),
        b"{}",
    ),
    "gzip": (ok(gzip.compress(b'{"a": "b"}'), "Content-Encoding: gzip"), b'{"a": "b"}'),
}


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    connection = Connection(CallDeadlines(), 1000)
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
    try:
        yield connection, theirs
    finally:
        connection.close()
        await connection.lost
        theirs.close()


@pytest.mark.parametrize("frame", FRAMES)
async def test_an_answer_may_be_cut_anywhere(frame: str) -> None:
    answer, body = FRAMES[frame]
    end = asyncio.get_running_loop().time() + 60
    async with pair() as (connection, _):
        for cut in range(1, len(answer)):
            waiting = connection.ask(b"POST", end)
            connection.data_received(answer[:cut])
            assert not waiting.done()
            connection.data_received(answer[cut:])
            assert (await waiting).body == body
            assert connection.reusable


@pytest.mark.parametrize("frame", FRAMES)
async def test_an_answer_may_come_byte_by_byte(frame: str) -> None:
    answer, body = FRAMES[frame]
    async with pair() as (connection, _):
        waiting = connection.ask(b"POST", asyncio.get_running_loop().time() + 60)
        for byte in answer:
            assert not waiting.done()
            connection.data_received(bytes([byte]))
        assert (await waiting).body == body


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n"])
async def test_an_answer_may_end_with_its_connection(head: bytes) -> None:
    answer = head + b'{"a": "b"}'
    for cut in range(1, len(answer)):
        async with pair() as (connection, server):
            waiting = connection.ask(b"POST", asyncio.get_running_loop().time() + 60)
            connection.data_received(answer[:cut])
            connection.data_received(answer[cut:])
            server.shutdown(socket.SHUT_WR)
            assert (await waiting).body == b'{"a": "b"}'
            assert not connection.reusable


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_may_have_no_body_whatever_its_length_says(status: int) -> None:
    play = keeps(f"HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\n".encode(), ok())
    async with serve(play) as server, client(server.url) as calls:
        assert await fault(calls) == ("caller", f"answered {status}: no message")
        assert await ask(calls) == b"{}"
    assert server.lines == 1


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzipped(b"[1]")),
        ("X-GZIP", gzipped(b"[1]")),
        ("deflate", zlib.compress(b"[1]")),
        ("deflate", zlib.compress(b"[1]", wbits=-15)),
        ("identity", b"[1]"),
        ("", b"[1]"),
    ],
)
async def test_what_a_server_packed_unasked_is_unpacked(coding: str, packed: bytes) -> None:
    async with serve(keeps(ok(packed, f"Content-Encoding: {coding}"))) as server, client(server.url) as calls:
        assert await ask(calls) == b"[1]"


@pytest.mark.parametrize(
    ("coding", "packed", "kind", "said"),
    [
        ("br", b"[1]", "malformed", "answered in an encoding that is not known here: 'br'"),
        ("gzip, gzip", b"[1]", "malformed", "answered in an encoding that is not known here: 'gzip, gzip'"),
        ("gzip", gzipped(bytes(2**20 + 1)), "malformed", "answered more than 1 MiB"),
        ("gzip", b"[1]", "transport", "the answer cannot be unpacked: Error -3"),
        ("gzip", gzipped(b"[1]")[:-1], "transport", "the answer cannot be unpacked: it does not end"),
        ("gzip", gzipped(b"[1]") + b"x", "transport", "the answer cannot be unpacked: it does not end"),
    ],
)
async def test_what_cannot_be_unpacked_is_said(
    coding: str, packed: bytes, kind: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollmill.models.http.MAX_BODY", 2**20)
    async with serve(keeps(ok(packed, f"Content-Encoding: {coding}"))) as server, client(server.url) as calls:
        found, detail = await fault(calls)
    assert found == kind
    assert detail.startswith(said)


async def test_no_encoding_is_asked_for() -> None:
    async def play(line: Line) -> None:
        requests.append(await line.hears())
        await line.says(ok())

    requests: list[bytes] = []
    async with serve(play) as server, client(server.url) as calls:
        await ask(calls, b'{"model": "m"}')
    port = server.url.removesuffix("/v1").rpartition(":")[2]
    assert requests == [
        b"POST /v1/responses HTTP/1.1\r\n"
        b"Host: 127.0.0.1:%b\r\n" % port.encode() + b"Accept: application/json\r\n"
        b"User-Agent: rollmill\r\n"
        b"Content-Type: application/json\r\n"
        b'Content-Length: 14\r\n\r\n{"model": "m"}'
    ]


# Answers that are none.


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
        b"HTTP/1.1 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ntwo\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_fault_of_the_connection(said: bytes) -> None:
    async with serve(stalls(said)) as server, client(server.url) as calls:
        kind, detail = await fault(calls)
    assert kind == "transport"
    assert detail.startswith("no HTTP answer: ")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
        chunked(b"{}")[:-1],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{",
    ],
)
async def test_an_answer_that_is_cut_is_a_fault_of_the_connection(said: bytes) -> None:
    async with serve(closes(said)) as server, client(server.url) as calls:
        assert await fault(calls) == ("transport", "the server closed the connection in the middle of its answer")


async def test_a_transfer_encoding_that_nobody_uses_is_refused() -> None:
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    async with serve(stalls(said)) as server, client(server.url) as calls:
        assert (await fault(calls))[0] == "malformed"


async def test_a_body_that_says_that_it_is_too_long_is_not_read() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
    async with serve(stalls(said)) as server, client(server.url) as calls:
        assert await fault(calls) == ("malformed", "answered more than 64 MiB")


FLOODS = {
    "a body": (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 2**16, MANY, "answered more than 64 MiB"),
    "chunks": (chunked()[:-5], b"10000\r\n" + b" " * 2**16 + b"\r\n", MANY, "answered more than 64 MiB"),
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1024, 2**16, "answered with more than 64 KiB of headers"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100, 2**16, "answered with more than 64 KiB of headers"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40, 2**16, "answered with more than 64 KiB of headers"),
    "trailers": (chunked(b"{}")[:-2], b"X: y\r\n" * 100, 2**16, "answered with more than 64 KiB of headers"),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_server_that_does_not_stop_is_left(flood: str) -> None:
    beginning, piece, limit, said = FLOODS[flood]

    async def play(line: Line) -> None:
        await line.hears()
        await line.says(beginning)
        # Ends where the client closes the connection.
        while True:
            await line.says(piece)
            server.said += len(piece)

    async with serve(play) as server, client(server.url) as calls:
        assert await fault(calls) == ("malformed", said)
        # What lay in the buffers of the sockets was sent, too.
        assert limit - len(piece) <= server.said < limit + 16 * 2**20


# Which connections are used again.


async def test_calls_in_a_row_take_one_connection_and_calls_at_once_one_each() -> None:
    async with serve(keeps(*[ok()] * 100)) as server, client(server.url) as calls:
        for _ in range(10):
            await ask(calls)
        assert server.lines == 1
        for _ in range(3):
            await asyncio.gather(*(ask(calls) for _ in range(10)))
        assert server.lines == 10
        for _ in range(5):
            await ask(calls)
    assert server.lines == 10
    # The others can be closed when they have rested.
    assert len(set(server.used[-5:])) == 1


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"{}", "Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        ok() + b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nanother",
        ok() + b"garbage",
        ok() + b"H",
    ],
)
async def test_a_connection_that_cannot_go_on_is_left(answer: bytes) -> None:
    async with serve(stalls(answer)) as server, client(server.url) as calls:
        for _ in range(3):
            assert await ask(calls) == b"{}"
    assert server.lines == 3


async def test_what_comes_unasked_is_no_answer_to_the_next_call() -> None:
    async def play(line: Line) -> None:
        await line.hears()
        await line.says(ok())
        await answered.wait()
        await line.says(ok(b"late"))
        await line.is_left()

    answered = asyncio.Event()
    async with serve(play, keeps(ok(b"mine"))) as server, client(server.url) as calls:
        assert await ask(calls) == b"{}"
        answered.set()
        await asyncio.sleep(0.1)
        assert await ask(calls) == b"mine"


async def test_a_connection_that_was_closed_at_rest_is_replaced() -> None:
    async with serve(closes(ok())) as server, client(server.url) as calls:
        for _ in range(3):
            assert await ask(calls) == b"{}"
            await asyncio.sleep(0.05)
    assert server.lines == 3
    assert server.heard == [b"{}"] * 3


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_call_that_met_a_closing_connection_is_sent_again(how: str) -> None:
    async def play(line: Line) -> None:
        await line.hears()
        await line.says(ok(b"first"))
        await line.hears()
        if how == "reset":
            line.writer.transport.abort()

    async with serve(play, play, keeps(ok(b"again"))) as server, client(server.url) as calls:
        assert await asyncio.gather(ask(calls, b"1"), ask(calls, b"2")) == [b"first", b"first"]
        # Both connections will be closed under the next call, and yet it is sent twice, not three times.
        assert await ask(calls, b"3") == b"again"
        assert sorted(server.heard) == [b"1", b"2", b"3", b"3"]


async def test_a_new_connection_that_is_closed_without_an_answer_is_a_fault() -> None:
    async with serve(closes()) as server, client(server.url) as calls:
        assert await fault(calls) == ("transport", "the server closed the connection without an answer")
    assert server.lines == 1


async def test_a_call_whose_answer_began_is_not_sent_again() -> None:
    async def play(line: Line) -> None:
        await line.hears()
        await line.says(ok())
        await line.hears()
        await line.says(b"H")

    async with serve(play) as server, client(server.url) as calls:
        await ask(calls)
        assert await fault(calls) == ("transport", "the server closed the connection in the middle of its answer")
    assert server.lines == 1


@pytest.mark.parametrize("said", [(), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",)])
async def test_a_call_that_is_cancelled_takes_its_connection_along(said: tuple[bytes, ...]) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def play(line: Line) -> None:
        await line.hears()
        await line.says(*said)
        asked.set()
        await line.is_left()
        left.set()

    async with serve(play, keeps(ok(b"mine"))) as server, client(server.url) as calls:
        call = asyncio.create_task(ask(calls))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await left.wait()
        assert await ask(calls) == b"mine"
    assert server.lines == 2


async def test_a_call_that_is_cancelled_while_it_connects_leaves_nothing(certificate: Path) -> None:
    async with serve(stalls()) as server, client(server.url.replace("http:", "https:")) as calls:
        call = asyncio.create_task(ask(calls))
        while not server.lines:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_an_answer_before_the_request_is_sent_ends_the_connection() -> None:
    async def play(line: Line) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        await line.says(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await over.wait()

    over = asyncio.Event()
    async with serve(play, keeps(ok())) as server, client(server.url) as calls:
        assert (await fault(calls, b" " * 2**25))[0] == "caller"
        assert await ask(calls) == b"{}"
        over.set()
    assert server.lines == 2


async def test_a_large_request_arrives_whole() -> None:
    async with serve(keeps(ok())) as server, client(server.url) as calls:
        await ask(calls, b"x" * 2**23)
    assert server.heard == [b"x" * 2**23]


async def test_connections_at_rest_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.1)
    left = asyncio.Event()

    async def play(line: Line) -> None:
        await line.hears()
        await line.says(ok())
        await line.is_left()
        left.set()

    async with serve(play) as server, client(server.url) as calls:
        await ask(calls)
        await left.wait()
        await ask(calls)
    assert server.lines == 2


async def test_leaving_the_client_closes_what_is_open() -> None:
    left = []

    async def play(line: Line) -> None:
        await line.hears()
        await line.says(ok())
        left.append(await line.is_left())

    async with serve(play) as server:
        async with client(server.url) as calls:
            await asyncio.gather(*(ask(calls) for _ in range(5)))
        async with asyncio.timeout(5):
            while len(left) < 5:
                await asyncio.sleep(0.01)
    assert left == [b""] * 5


async def test_leaving_the_client_ends_the_calls_that_wait() -> None:
    async with serve(stalls()) as server:
        async with client(server.url) as calls:
            call = asyncio.create_task(fault(calls))
            while not server.heard:
                await asyncio.sleep(0.01)
        assert (await call)[0] == "transport"


# Deadlines.


@pytest.mark.parametrize(
    ("pieces", "limits", "said"),
    [
        ((), {"first_byte_s": 0.1}, "gave up waiting for the first byte"),
        (
            (b"HTTP/1.1 100 Continue\r\n\r\n",),
            {"first_byte_s": 0.2, "idle_s": 0.1},
            "gave up waiting for the first byte",
        ),
        ((b"HTTP/1.1",), {"idle_s": 0.1}, "gave up waiting for the rest of the answer"),
        ((ok(b"{}")[:-1],), {"idle_s": 0.1}, "gave up waiting for the rest of the answer"),
        ((b"HTTP/1.1 200 OK\r\n\r\n{}",), {"idle_s": 0.1}, "gave up waiting for the rest of the answer"),
        (
            tuple(bytes([byte]) for byte in ok(b"{" + b" " * 200)),
            {"idle_s": 5.0, "total_s": 0.3},
            "gave up waiting for the rest of the answer",
        ),
    ],
)
async def test_a_phase_that_takes_too_long_ends_the_call(
    pieces: tuple[bytes, ...], limits: dict[str, float], said: str
) -> None:
    play = stalls(*pieces, every_s=0.01)
    async with serve(play) as server, client(server.url, deadlines=CallDeadlines(**limits)) as calls:
        assert await fault(calls) == ("timeout", said)


async def test_an_interim_answer_does_not_begin_the_answer() -> None:
    async def play(line: Line) -> None:
        await line.hears()
        await line.says(b"HTTP/1.1 102 Proc", b"essing\r\n\r\n", every_s=0.05)
        await asyncio.sleep(0.5)
        await line.says(ok())

    limits = CallDeadlines(first_byte_s=10, idle_s=0.3)
    async with serve(play) as server, client(server.url, deadlines=limits) as calls:
        assert await ask(calls) == b"{}"


async def test_a_call_on_a_used_connection_has_its_own_deadlines() -> None:
    async def play(line: Line) -> None:
        for _ in range(5):
            await line.hears()
            await asyncio.sleep(0.15)
            await line.says(ok())
        await line.is_left()

    async with serve(play) as server, client(server.url, deadlines=CallDeadlines(first_byte_s=0.6)) as calls:
        for _ in range(5):
            assert await ask(calls) == b"{}"
        assert await fault(calls) == ("timeout", "gave up waiting for the first byte")
    assert server.lines == 1


async def test_the_handshake_belongs_to_connecting() -> None:
    limits = CallDeadlines(connect_s=0.2)
    async with serve(stalls()) as server, client(server.url.replace("http:", "https:"), deadlines=limits) as calls:
        assert await fault(calls) == ("timeout", "no connection in 0.2 s")


# Names, addresses and TLS.


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for `localhost` that it signed itself; its key lies beside it."""
    folder = tmp_path_factory.mktemp("tls")
    made = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=localhost"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *curve, *made, "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "cert.pem"


def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


async def test_tls_with_a_certificate_that_the_environment_trusts(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    play = keeps(ok(), ok(b" " * 2**20))
    async with serve(play, tls=tls(certificate)) as server, client(server.by_name) as calls:
        assert await ask(calls) == b"{}"
        assert len(await ask(calls, b"x" * 2**20)) == 2**20
    assert server.lines == 1


async def test_a_certificate_of_somebody_unknown_is_refused(certificate: Path) -> None:
    async with serve(keeps(ok()), tls=tls(certificate)) as server, client(server.by_name) as calls:
        kind, said = await fault(calls)
    assert kind == "transport"
    assert "certificate verify failed: self" in said
    assert server.heard == []


async def test_a_certificate_for_another_name_is_refused(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serve(keeps(ok()), tls=tls(certificate)) as server, client(server.url) as calls:
        kind, said = await fault(calls)
    assert kind == "transport"
    assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in said
    assert server.heard == []


async def test_a_name_stands_for_several_addresses() -> None:
    async with serve(keeps(ok())) as server, client(server.by_name) as calls:
        assert await asyncio.gather(*(ask(calls) for _ in range(20))) == [b"{}"] * 20


async def test_an_address_may_be_of_version_6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with serve(keeps(ok()), host="::1") as server, client(server.url) as calls:
        assert await ask(calls) == b"{}"


async def test_a_name_that_nobody_has_is_said() -> None:
    async with client("http://model.invalid/v1") as calls:
        kinds = {(await fault(calls))[0] for _ in range(2)}
        kinds |= {kind for kind, _ in await asyncio.gather(fault(calls), fault(calls))}
    assert kinds == {"transport"}


# What a request says.


@pytest.mark.parametrize(
    ("url", "target", "host"),
    [
        ("http://host/v1", "/v1", "host"),
        ("http://host", "/", "host"),
        ("http://HOST:80/v1", "/v1", "host"),
        ("https://host:443/v1", "/v1", "host"),
        ("http://host:8000/a b/%20/ü?x=1&y=a b", "/a%20b/%20/%C3%BC?x=1&y=a%20b", "host:8000"),
        ("http://[::1]:8000/v1", "/v1", "[::1]:8000"),
        ("http://my_host-1.local/v1", "/v1", "my_host-1.local"),
        ("http://bücher.example/v1", "/v1", "xn--bcher-kva.example"),
        ("http://host/v1\r\nX: y", "/v1X:%20y", "host"),
        ("http://host/v1\0\x7f\u2028", "/v1%00%7F%E2%80%A8", "host"),
    ],
)
def test_a_url_becomes_a_request(url: str, target: str, host: str) -> None:
    head = request_head("POST", url, Origin.of(url), {}, {})
    assert head.decode("ascii").split("\r\n")[:2] == [f"POST {target} HTTP/1.1", f"Host: {host}"]


@pytest.mark.parametrize("host", ["ho st", "host\0", "host\x7f", "ho,st", "a..ü", "-" * 64 + "ü", "[::1"])
def test_a_host_that_is_none_is_refused_at_once(host: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT/v1"):
        HttpClient(f"http://{host}/v1")


def test_a_query_is_escaped() -> None:
    head = request_head("GET", "http://host/v1", Origin.of("http://host/v1"), {}, {"a b": "c&d\r\n", "e": "f"})
    assert head.startswith(b"GET /v1?a+b=c%26d%0D%0A&e=f HTTP/1.1\r\n")


def test_a_header_cannot_hold_another_one() -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head("GET", "http://host/v1", Origin.of("http://host/v1"), {"a": "b\r\nc: d"}, {})
    for name in ("a\r\nb", "a b", "a:", ""):
        with pytest.raises(ConfigError, match="name of a header"):
            HttpClient("http://host/v1", headers={name: "x"})


def test_a_name_and_a_password_in_the_url_are_sent_as_such() -> None:
    url = "http://me:p%40ss@host/v1"
    head = request_head("GET", url, Origin.of(url), {}, {})
    assert b"Authorization: Basic " + base64.b64encode(b"me:p@ss") in head
    head = request_head("GET", url, Origin.of(url), {"authorization": "Bearer k"}, {})
    assert b"Basic" not in head
    assert b"Host: host\r\n" in head


async def test_a_transport_asks_for_lists_too() -> None:
    async with serve(keeps(ok(b"[]"))) as server, Transport({}, {}, CallDeadlines(), 1000) as wire:
        answer = await wire.get(f"{server.url}/models")
    assert (answer.status, answer.header("content-length"), answer.body) == (200, "2", b"[]")
