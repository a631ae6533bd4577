"""Requests of JSON to a few servers over HTTP/1.1: what a call costs here decides how many a processor can make."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlencode, urlsplit

from msgspec import Struct

from rollmill.net.connection import Answer, CallDeadlines
from rollmill.net.pool import Origin, Pool

# What a path or a query may hold as it is; everything else is escaped, line breaks first of all.
_SAFE = "/%:@!$&'()*+,;=~-._?"


class _Target(Struct, frozen=True):
    """Where a request goes, and the part of it that is always the same."""

    pool: Pool
    head: bytes


class Transport:
    """Sends requests and reads answers. Raises `WireError` where none comes; a status is the caller's to judge.

    With `once`, nothing is sent twice that the server may have seen.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        limits: CallDeadlines,
        max_body: int,
        *,
        once: bool = False,
    ) -> None:
        self._once = once
        self._headers, self._query, self._limits, self._max_body = headers, query, limits, max_body
        self._targets: dict[tuple[str, str], _Target] = {}
        self._pools: dict[Origin, Pool] = {}
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pools = list(self._pools.values())
        self._targets, self._pools = {}, {}
        await asyncio.gather(*(pool.close() for pool in pools))

    def post(self, url: str, body: bytes, lines: bytes = b"") -> Coroutine[Any, Any, Answer]:
        """`lines` are headers of this request alone, each with its line break."""
        # No coroutine around another's: each costs its share of every call.
        target = self._targets.get(("POST", url)) or self._target("POST", url)
        request = b"%b%bContent-Length: %d\r\n\r\n%b" % (target.head, lines, len(body), body)
        return target.pool.ask(request, self._loop.time() + self._limits.total_s)

    async def get(self, url: str) -> Answer:
        target = self._targets.get(("GET", url)) or self._target("GET", url)
        return await target.pool.ask(target.head + b"\r\n", self._loop.time() + self._limits.total_s)

    def _target(self, method: str, url: str) -> _Target:
        origin = Origin.of(url)
        target = _Target(self._pool(origin), request_head(method, url, origin, self._headers, self._query))
        self._targets[method, url] = target
        return target

    def _pool(self, origin: Origin) -> Pool:
        if origin not in self._pools:
            if origin.tls and self._tls is None:
                self._tls = ssl.create_default_context()
            tls = self._tls if origin.tls else None
            self._pools[origin] = Pool(origin, self._limits, self._max_body, tls, once=self._once)
        return self._pools[origin]


def request_head(method: str, url: str, origin: Origin, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
    """The lines of a request up to those that tell of its body."""
    parts = urlsplit(url)
    asked = "&".join(filter(None, (quote(parts.query, _SAFE), urlencode(query))))
    target = (quote(parts.path, _SAFE) or "/") + (f"?{asked}" if asked else "")
    usual = {"Host": origin.header, "Accept": "application/json", "User-Agent": "rollmill"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        usual["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    given = set(map(str.lower, headers))
    fields = {name: value for name, value in usual.items() if name.lower() not in given} | dict(headers)
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if not all(map(str.isprintable, lines)):
        raise ValueError("a header holds a line break or the like")
    return "".join(f"{line}\r\n" for line in lines).encode()
