"""The places in which a component can live, behind one function each."""

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import rollmill as rm
from rollmill.environment import opened
from rollmill.net.connection import Answer
from rollmill.rollout import Deferred, in_thread, play
from rollmill.serve.agent import AgentService, Player
from rollmill.serve.app import App
from rollmill.serve.client import Client
from rollmill.serve.environment import EnvironmentService
from rollmill.serve.listen import Listener
from rollmill.serve.model import ModelService
from rollmill.serve.remote_agent import Elsewhere, NamedModel, RemoteAgent
from rollmill.serve.remote_environment import RemoteWorld
from rollmill.serve.remote_model import RemoteModel


class Asgi:
    """Carries requests to an application in this process, without a socket."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, url: str) -> Answer:
        return await self._ask("GET", url, b"", b"")

    async def post(self, url: str, body: bytes, lines: bytes = b"") -> Answer:
        return await self._ask("POST", url, body, lines)

    async def _ask(self, method: str, url: str, body: bytes, lines: bytes) -> Answer:
        path = "/" + url.split("/", 3)[3]
        pairs = [line.split(b": ", 1) for line in lines.splitlines()]
        headers = [(b"host", b"127.0.0.1"), *((name.lower(), value) for name, value in pairs)]
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        told: list[dict[str, Any]] = []
        heard = asyncio.Queue()
        heard.put_nowait({"type": "http.request", "body": body})

        async def send(message):
            told.append(message)

        await self._app(scope, heard.get, send)
        cookies = [value for name, value in told[0]["headers"] if name == b"set-cookie"]
        got = dict(told[0]["headers"]) | ({b"set-cookie": b"\n".join(cookies)} if cookies else {})
        return Answer(told[0]["status"], got, b"".join(one["body"] for one in told[1:]))


Place = Callable[[AsyncExitStack, App], Any]


async def by_asgi(stack: AsyncExitStack, app: App) -> Client:
    if app.life:
        await stack.enter_async_context(app.life())
    return await stack.enter_async_context(Client("http://127.0.0.1:1", way=Asgi(app)))


async def by_http(stack: AsyncExitStack, app: App) -> Client:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    await stack.enter_async_context(Listener(app, [listening]))
    return await stack.enter_async_context(Client(f"http://127.0.0.1:{port}"))


PLACES = {"asgi": by_asgi, "http": by_http}


def nothing(rows: Any) -> dict[str, Any]:
    return {"rows": len(list(rows))}


@asynccontextmanager
async def remote_model(place: Place, model: rm.Model) -> AsyncIterator[RemoteModel]:
    async with AsyncExitStack() as stack:
        yield RemoteModel(model.name, await place(stack, ModelService("policy_model", model).app))


@asynccontextmanager
async def remote_world(place: Place, kind: type[rm.Environment]) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(opened(kind))
        service = EnvironmentService(kind.__name__.lower(), kind, world, in_thread, nothing)
        yield functools.partial(_remote, RemoteWorld(await place(stack, service.app)))
        assert len(service.sessions) == 0, "a session was left behind"


def _remote(service: RemoteWorld, task: rm.Task) -> rm.Environment:
    from rollmill.serve.remote_environment import RemoteEnvironment

    return RemoteEnvironment(task, service=service)


@asynccontextmanager
async def remote_agent(place: Place, kind: type[rm.Environment], model: rm.Model) -> AsyncIterator[RemoteAgent]:
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(opened(kind))
        agent = rm.ToolAgent(max_turns=8)
        player = Player(
            kind.task_type,
            lambda task: kind.check_task(task, {}),
            lambda task: play(task, world, agent, model),
            lambda task: play(task, world, agent, model, judge=Deferred()),
        )
        service = AgentService("my_agent", player, nothing)
        yield RemoteAgent("my_agent", await place(stack, service.app))


@asynccontextmanager
async def arranged(where: str, place: str, kind: type[rm.Environment], model: rm.Model) -> AsyncIterator[tuple]:
    """(world, agent, model), of which what `where` names lives at a place, and the rest here."""
    there = PLACES.get(place)
    agent = rm.ToolAgent(max_turns=8)
    async with AsyncExitStack() as stack:
        if there is None or where == "nothing":
            yield await stack.enter_async_context(opened(kind)), agent, model
        elif where == "model":
            elsewhere = await stack.enter_async_context(remote_model(there, model))
            yield await stack.enter_async_context(opened(kind)), agent, elsewhere
        elif where == "environment":
            yield await stack.enter_async_context(remote_world(there, kind)), agent, model
        elif where == "both":
            elsewhere = await stack.enter_async_context(remote_model(there, model))
            yield await stack.enter_async_context(remote_world(there, kind)), agent, elsewhere
        else:
            distant = await stack.enter_async_context(remote_agent(there, kind, model))
            yield Elsewhere, distant, NamedModel(model.name)


@pytest.fixture(params=list(PLACES))
def place(request: pytest.FixtureRequest) -> str:
    return request.param
