"""Servers that answer what a test tells them to, and one small real model."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollmill.models import weights


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own proxies stay out of the tests."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@dataclass
class Heard:
    """A request as a server saw it."""

    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Any
"""A dict, as the JSON of a 200; bytes, as its body; (status, body) or (status, body, headers); a handler of aiohttp."""


@dataclass
class Server:
    """A server on loopback: the n-th POST gets the n-th answer, and the last one from then on.

    A GET finds nothing, unless the first answer is a handler: that one hears everything.
    """

    answers: tuple[Answer, ...]
    url: str = ""
    heard: list[Heard] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST" and not callable(self.answers[0]):
            raise web.HTTPNotFound
        body = await request.read()
        turn = len(self.heard)
        self.heard.append(Heard(request.path, dict(request.query), request.headers, body))
        answer = self.answers[min(turn, len(self.answers) - 1)]
        if callable(answer):
            return await answer(request)
        status, said, headers = (*answer, {})[:3] if isinstance(answer, tuple) else (200, answer, {})
        return web.Response(
            status=status, body=said if isinstance(said, bytes) else json.dumps(said).encode(), headers=headers
        )


Serve = Callable[..., Awaitable[Server]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server that gives these answers; its `url` is a base URL, `heard` what it was asked."""
    runners: list[web.AppRunner] = []

    async def serve(*answers: Answer) -> Server:
        server = Server(answers)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}/v1"
        return server

    yield serve
    for runner in runners:
        await runner.cleanup()


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The bundled small model; pulled on the first run of a machine, found from then on."""
    return weights.pull()


@pytest.fixture(scope="session")
def llama(model_file: Path) -> Iterator[str]:
    """The base URL of a real llama.cpp server with the small model, without a key."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file)
    params.n_parallel = 2
    params.n_ctx = 2 * 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.verbosity = -1
    params.chat_template = (resources.files("rollmill.models") / "templates" / "smollm2.jinja").read_text("utf-8")
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server
