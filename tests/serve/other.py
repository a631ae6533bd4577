"""Somebody's server, byte by byte: it counts what it hears, and does with every request what a test tells it to."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Answer = Callable[["Line"], Awaitable[None]]


class Line:
    """One request on a connection, and the way back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
        self.reader, self.writer = reader, writer
        self.path = head.split(b" ")[1].decode()
        self.head, self.body = head.decode("latin-1"), body

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


class Other:
    """The n-th request gets the n-th answer, and the last one from then on."""

    def __init__(self, *answers: Any) -> None:
        self.heard: list[Line] = []
        self.connections = 0
        self.port = 0
        self._answers = [one if callable(one) else answered(one) for one in answers]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [line.path for line in self.heard]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, told, length = head.lower().partition(b"content-length: ")
                body = await reader.readexactly(int(length.split(b"\r\n")[0]) if told else 0)
                self.heard.append(Line(reader, writer, head, body))
                await self._answers[min(len(self.heard), len(self._answers)) - 1](self.heard[-1])
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(other: Other, port: int = 0) -> AsyncIterator[Other]:
    server = await asyncio.start_server(other.serve, "127.0.0.1", port)
    other.port = server.sockets[0].getsockname()[1]
    try:
        yield other
    finally:
        server.close()


# Answers.


def answered(said: Any, status: int = 200, **headers: str) -> Answer:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    lines = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = f"HTTP/1.1 {status} OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())

    async def answer(line: Line) -> None:
        await line.say(head.encode("latin-1") + b"\r\n" + body)

    return answer


async def hangs_up(line: Line) -> None:
    """Takes the request, and is gone."""
    raise EOFError


async def hangs_up_half_way(line: Line) -> None:
    await line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    raise EOFError


async def says_nothing(line: Line) -> None:
    await line.reader.read()


async def speaks_another_language(line: Line) -> None:
    await line.say(b"SSH-2.0-OpenSSH_9.9\r\n")


async def never_ends(line: Line) -> None:
    await line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await line.say(b"100000\r\n" + b" " * 0x100000 + b"\r\n")


def and_closes(answer: Answer) -> Answer:
    """The answer, and then the end of the connection, of which nothing was said."""

    async def close(line: Line) -> None:
        await answer(line)
        raise EOFError

    return close


def by_path(answers: dict[str, Any], otherwise: Answer = answered({"detail": "Not Found"}, 404)) -> Answer:
    """Another answer for each path."""
    known = {path: one if callable(one) else answered(one) for path, one in answers.items()}

    async def answer(line: Line) -> None:
        await known.get(line.path, otherwise)(line)

    return answer


HTML = answered(b"<html><body>\n<h1>502 Bad Gateway</h1>\n</body></html>", 502, content_type="text/html")
ELSEWHERE = answered(b"", 302, location="http://elsewhere.example/")
NOT_OURS = answered({"hello": "world"})
DEEP = answered(b"[" * 200_000)
BINARY = answered(b"\xff\xfe\x00")
