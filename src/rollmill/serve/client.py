"""The way to one service: what never reached it is sent again until it is there, everything else is sent once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rollmill.errors import ConfigError
from rollmill.model import Secret
from rollmill.net.connection import Answer, CallDeadlines, WireError
from rollmill.net.pool import Origin
from rollmill.net.wire import Wire, wire

MAX_BODY = 256 * 2**20
WAIT_S = 50.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class Client:
    """Asks one service. Raises `WireError` where no answer comes; a status is the caller's to judge."""

    def __init__(
        self,
        url: str,
        *,
        token: Secret | None = None,
        deadlines: CallDeadlines = CallDeadlines(),
        wait_s: float = WAIT_S,
        way: Wire | None = None,
    ) -> None:
        """For `wait_s` a service that cannot be reached is waited for; `way` carries the requests in place of HTTP."""
        try:
            Origin.of(url)
        except ValueError:
            raise ConfigError(f"service URL {url!r}: expected http://HOST:PORT") from None
        if token and not token.reveal().isprintable():
            raise ConfigError("access_token holds a line break or the like: look at its end")
        self.url = url.rstrip("/")
        headers = {"Content-Type": "application/json"}
        self._headers = headers | ({"Authorization": f"Bearer {token.reveal()}"} if token else {})
        self._deadlines, self._wait_s, self._way = deadlines, wait_s, way

    async def __aenter__(self) -> Self:
        if self._way is None:
            self._way = wire(self._headers, {}, self._deadlines, MAX_BODY, once=True)
        await self._way.__aenter__()
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._way is not None:
            await self._way.__aexit__(*error)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items() if value.isprintable())
        return await self._ask(path, body, lines.encode("latin-1", "replace"))

    async def get(self, path: str) -> Answer:
        return await self._ask(path, None, b"")

    async def _ask(self, path: str, body: bytes | None, lines: bytes) -> Answer:
        way, url = self._open, self.url + path
        until, pause_s = time.monotonic() + self._wait_s, _FIRST_PAUSE_S
        while True:
            try:
                return await (way.get(url) if body is None else way.post(url, body, lines))
            except WireError as error:
                if error.reached or time.monotonic() + pause_s > until:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @property
    def _open(self) -> Wire:
        if self._way is None:
            raise ConfigError(f"the way to {self.url} is not open: enter the client first (`async with client:`)")
        return self._way
