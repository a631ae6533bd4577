"""An application on sockets, by uvicorn: several of them share one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollmill.serve.app import App, Bounds
from rollmill.serve.http import JSON, Problem

IDLE_S = 30
_GRACE_S = 1
_UPGRADE = re.compile(rb"(\r\n)upgrade:", re.IGNORECASE)


class Listener:
    """Serves an application while it is entered, on sockets that listen already."""

    def __init__(self, app: App, sockets: Sequence[socket.socket]) -> None:
        self._app = app
        self._sockets = list(sockets)
        config = uvicorn.Config(
            app,
            lifespan="off",
            http=_Connection,
            ws="none",
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
        async with contextlib.AsyncExitStack() as stack:
            for one in self._sockets:
                stack.callback(one.close)
                # An answer is written in two pieces, and asyncio's own loop does this for sockets alone that it made.
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._app.life:
                await stack.enter_async_context(self._app.life())
            self._serving = asyncio.create_task(self._server.serve(self._sockets))
            while not self._server.started:
                if self._serving.done():
                    self._serving.result()
                await asyncio.sleep(0.001)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        await self._serving
        await self._stack.aclose()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's affair, and several servers share it."""
        yield


class _Connection(HttpToolsProtocol):
    """uvicorn's, with bounds on what comes before a body, behind it, and after its answer."""

    def __init__(self, config: uvicorn.Config, *others: Any, **more: Any) -> None:
        super().__init__(config, *others, **more)
        self._bounds: Bounds = cast("App", config.app).bounds
        self._overhead = 0
        self._in_head, self._in_body = True, False
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_alarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_body and b"pgrade:" in data:
            # Its parser leaves out the body of a request that offers another protocol, as those of Java's client do.
            data = _UPGRADE.sub(rb"\1x-offer:", data)
        self._overhead += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._overhead > self._bounds.head:
            self._refuse(Problem(431, "too_large", f"more than {self._bounds.head >> 10} KiB of headers"))
        elif self._alarm is None and (self._in_head or (self._in_body and not self._is_answering)):
            self._set_alarm()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._overhead = False, True, 0
        self._stop_alarm()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_alarm()
        super().on_message_complete()

    def _set_alarm(self) -> None:
        self._alarm = self.loop.call_later(self._bounds.head_s, self._too_slow)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _too_slow(self) -> None:
        self._alarm = None
        if self._is_answering:
            # It waits for its turn behind another request.
            self._set_alarm()
        else:
            self._refuse(Problem(408, "slow", "the headers came too slowly"))

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, problem: Problem) -> None:
        if self._in_head and not self._is_answering:
            body = problem.answer().body
            head = f"HTTP/1.1 {problem.status} \r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
