"""Services as their clients meet them: in this process, on sockets of loopback, and byte by byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
import uvloop

import rollmill as rm
from rollmill.environment import opened
from rollmill.rollout import Deadlines, in_thread
from rollmill.serve.app import App
from rollmill.serve.environment import EnvironmentService
from rollmill.serve.listen import Listener

Headers = Iterable[tuple[str, str]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    loops = {"standard": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    # Services run on uvloop where it is installed; tests/places have them on the standard loop.
    wanted = {"test_listen.py": ["uvloop"], "test_client.py": [*loops]}.get(item.path.name, ["standard"])
    return {name: loops[name] for name in wanted}


class Heard(NamedTuple):
    """What a service answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The word by which it says what is wrong."""
        return self.json["error"]["code"]

    @property
    def cookie(self) -> str:
        """What has to be sent back to be known again."""
        return self.headers["set-cookie"].partition(";")[0]


class Asked:
    """A request to an application in this process, without a socket; `leave` is the client that goes away."""

    def __init__(self, app: App, method: str, path: str, body: Any = b"", headers: Headers = ()) -> None:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"host": "127.0.0.1", **dict(headers)}
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()]
        self._scope = {"type": "http", "method": method, "path": path, "headers": pairs}
        self._app, self._said = app, []
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": sent, "more_body": False})

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> Heard | None:
        async def send(message: dict[str, Any]) -> None:
            self._said.append(message)

        await self._app(self._scope, self._inbox.get, send)
        if not self._said:
            return None
        head, *rest = self._said
        headers = {name.decode(): value.decode() for name, value in head["headers"]}
        return Heard(head["status"], headers, b"".join(one["body"] for one in rest))


async def ask(app: App, method: str, path: str, body: Any = b"", headers: Headers = ()) -> Heard:
    answer = await Asked(app, method, path, body, headers).answer()
    assert answer is not None
    return answer


async def post(app: App, path: str, body: Any = b"{}", headers: Headers = (), *, cookie: str = "") -> Heard:
    return await ask(app, "POST", path, body, (*headers, *([("Cookie", cookie)] if cookie else [])))


@asynccontextmanager
async def on_a_port(app: App) -> AsyncIterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    async with Listener(app, [listening]):
        yield port


class Wire:
    """A connection on which a test writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read(self) -> Heard:
        """The next answer. Raises `EOFError` where there is none."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        pairs = [line.partition(": ")[::2] for line in head[1:] if line]
        headers = {name.lower(): value for name, value in pairs}
        length = headers.get("content-length")
        body = await self._reader.readexactly(int(length)) if length else await self._chunks(headers)
        return Heard(int(head[0].split()[1]), headers, body)

    async def _chunks(self, headers: dict[str, str]) -> bytes:
        found = b""
        while headers.get("transfer-encoding") == "chunked":
            size = int(await self._reader.readline(), 16)
            found += (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                break
        return found

    async def ended(self) -> bool:
        """Wait until the service closes the connection, without another word."""
        try:
            return await self._reader.read() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            yield Wire(reader, writer)
    finally:
        writer.close()


def request(method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
    """The bytes of a request."""
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *lines]
    return "".join(f"{line}\r\n" for line in head).encode() + b"\r\n" + body


def nothing(rows: Iterable[Any]) -> dict[str, Any]:
    return {"rows": len(list(rows))}


@asynccontextmanager
async def environment_service(kind: type[rm.Environment], **options: Any) -> AsyncIterator[EnvironmentService]:
    """A service that must have closed every session when it ends."""
    options = {"deadlines": Deadlines(setup_s=5, play_s=5, verify_s=5, close_s=1)} | options
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(opened(kind))
        service = EnvironmentService(kind.__name__.lower(), kind, world, in_thread, nothing, **options)
        async with service.life():
            yield service
        assert len(service.sessions) == 0
