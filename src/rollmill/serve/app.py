"""A service as an ASGI application: routes, guards, bounded bodies, and every mistake as JSON with a status."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from msgspec import Struct

from rollmill.errors import CallerError, ContractError, OutageError
from rollmill.serve.guard import Guard
from rollmill.serve.http import Answer, Handler, Problem, Request, json
from rollmill.serve.openapi import Operation, described

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# What NeMo Gym's clients put before a path to say which rollout they mean.
_PREFIX = re.compile(r"/ng-rollout/[A-Za-z0-9][A-Za-z0-9._-]*(/training-token-capture)?(?=/)")


class Bounds(Struct, frozen=True):
    """How much of a request is read, and how long it may take to come."""

    head: int = 64 * 2**10
    """Bytes in a row that are no body: a request's line, headers and trailers."""
    head_s: float = 30.0
    """From the first byte to the last header, and for a new connection to say anything."""
    body: int = 64 * 2**20
    body_idle_s: float = 60.0
    body_s: float = 600.0


class Route(Struct, frozen=True):
    """A method and a path, whose last part may be a name in braces, and who answers."""

    method: str
    path: str
    handler: Handler
    operation: Operation
    long: bool = False
    """Whether it works so long that it is worth noticing that the client has gone."""


class App:
    """One service. `async with app.life():` while it serves, unless an ASGI server with a lifespan runs it."""

    def __init__(
        self,
        title: str,
        routes: Iterable[Route],
        *,
        guard: Guard = Guard(),
        life: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        hide: Callable[[str], str] = str,
        bounds: Bounds = Bounds(),
    ) -> None:
        """`hide` takes out of a text what must not leave the process."""
        self.title = title
        self.routes = [*routes, *self._own_routes()]
        self.life, self.bounds = life, bounds
        self._guard, self._hide = guard, hide
        self._exact: dict[str, dict[str, Route]] = {}
        self._below: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            parent, _, last = route.path.rpartition("/")
            table, key = (self._below, parent) if last.startswith("{") else (self._exact, route.path)
            table.setdefault(key, {})[route.method] = route

    def add(self, route: Route) -> None:
        """Before it serves."""
        self.routes.append(route)
        self._exact.setdefault(route.path, {})[route.method] = route

    def _own_routes(self) -> list[Route]:
        return [
            Route("GET", "/", self._alive, Operation("Whether the service answers")),
            Route("GET", "/openapi.json", self._describe, Operation("This description")),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await _Exchange(self, scope, receive, send).run()
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        stage = "startup"
        try:
            async with self.life() if self.life else nullcontext():
                await send({"type": "lifespan.startup.complete"})
                await receive()
                stage = "shutdown"
        except Exception as error:  # noqa: BLE001
            await send({"type": f"lifespan.{stage}.failed", "message": self._hide(str(error))})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Raises `Problem` where nobody answers."""
        found, place = self._exact.get(path), {}
        if found is None:
            parent, _, last = path.rpartition("/")
            found = self._below.get(parent) if last else None
            if found is not None:
                name = next(iter(found.values())).path.rpartition("/")[2].strip("{}")
                place = {name: last}
        if found is None:
            raise Problem(404, "not_found", f"{self.title} has no {path}")
        # What answers a GET answers a HEAD, without its body.
        route = found.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*found, *(("HEAD",) if "GET" in found else ())}))
            raise Problem(405, "wrong_method", f"{path} takes {allowed}", headers=(("Allow", allowed),))
        return route, place

    def check(self, headers: Mapping[str, str]) -> None:
        self._guard.check(headers)

    def fault(self, error: BaseException) -> Problem:
        """An error of ours: the log has all of it, the client a number to find it there."""
        number = uuid4().hex[:12]
        log.error("fault %s in %s: %s", number, self.title, self._hide("".join(traceback.format_exception(error))))
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return Problem(500, "internal", f"{type(error).__name__}{place}; the log of {self.title} has fault {number}")

    def shown(self, answer: Answer) -> Answer:
        """An answer that tells of a mistake, without what must not leave the process."""
        text = answer.body.decode("utf-8", "replace")
        return Answer(self._hide(text).encode(), answer.status, answer.content_type, answer.headers)

    async def _alive(self, _: Request) -> Answer:
        return json({"status": "ok"})

    async def _describe(self, _: Request) -> Answer:
        token = bool(self._guard.token)
        routes = [(route.method, route.path, route.operation) for route in self.routes]
        return json(described(self.title, routes, token=token))


class _Exchange:
    """One request and its answer."""

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        self._app, self._scope, self._receive, self._send = app, scope, receive, send
        self._head = scope["method"] == "HEAD"

    async def run(self) -> None:
        try:
            answer = await self._answer()
        except Problem as problem:
            answer = self._app.shown(problem.answer())
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            # The server stops, and has waited; it is told here, at the outermost place, and the client hears of it.
            again = (("Retry-After", "1"),)
            answer = Problem(503, "stopping", f"{self._app.title} stops", headers=again).answer()
        except CallerError as error:
            code = "contract" if isinstance(error, ContractError) else "config"
            answer = self._app.shown(Problem(500, code, str(error)).answer())
        except OutageError as error:
            answer = self._app.shown(Problem(503, "outage", str(error)).answer())
        except Exception as error:  # noqa: BLE001
            answer = self._app.shown(self._app.fault(error).answer())
        # Whoever asked may have gone.
        with suppress(OSError):
            await self._say(answer)

    async def _answer(self) -> Answer:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._scope["headers"]}
        self._app.check(headers)
        method, path = self._scope["method"], _PREFIX.sub("", self._scope["path"], count=1)
        route, place = self._app.find(method, path)
        body = await self._body(headers)
        request = Request(method, path, headers, body, place)
        if not route.long:
            return await route.handler(request)
        return await self._unless_gone(route.handler(request))

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        bounds = self._app.bounds
        too_long = Problem(413, "too_large", f"a body of more than {bounds.body >> 20} MiB is not read")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > bounds.body:
            raise too_long
        pieces: list[bytes] = []
        size, more = 0, True
        until = time.monotonic() + bounds.body_s
        while more:
            try:
                async with asyncio.timeout(min(bounds.body_idle_s, until - time.monotonic())):
                    message = await self._receive()
            except TimeoutError:
                raise Problem(408, "slow", "the body came too slowly") from None
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > bounds.body:
                raise too_long
            more = message.get("more_body", False)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        _refuse_other_text(body)
        return body

    async def _unless_gone(self, work: Awaitable[Answer]) -> Answer:
        """What nobody waits for any more is not worked on any longer."""
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGoneError
            return working.result()
        finally:
            for one in (working, gone):
                one.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)

    async def _say(self, answer: Answer) -> None:
        headers = [(b"content-type", answer.content_type.encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        if answer.stream is None:
            headers.append((b"content-length", str(len(answer.body)).encode()))
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if answer.stream is not None and not self._head:
            async for piece in answer.stream:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        body = b"" if self._head or answer.stream is not None else answer.body
        await self._send({"type": "http.response.body", "body": body})


def _refuse_other_text(body: bytes) -> None:
    # What passes through as it came is looked at nowhere else.
    try:
        _ = body.isascii() or body.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, "not_json", f"the body is no JSON, which is UTF-8: {error}") from None


class ClientGoneError(Exception):
    """Nobody waits for the answer."""
