"""An application on sockets, by uvicorn: several of them share one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import uvicorn

from rollmill.serve.app import App

IDLE_S = 30
_GRACE_S = 1


class Listener:
    """Serves an application while it is entered, on sockets that listen already."""

    def __init__(self, app: App, sockets: Sequence[socket.socket]) -> None:
        self._app = app
        self._sockets = list(sockets)
        config = uvicorn.Config(
            app,
            lifespan="off",
            http="httptools",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=_GRACE_S,
            backlog=2048,
        )
        self._server = _Server(config)

    async def __aenter__(self) -> Self:
        self._stack = contextlib.AsyncExitStack()
        if self._app.life:
            await self._stack.enter_async_context(self._app.life())
        self._serving = asyncio.create_task(self._server.serve(self._sockets))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.001)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        await self._serving
        for one in self._sockets:
            one.close()
        await self._stack.aclose()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's affair, and several servers share it."""
        yield
