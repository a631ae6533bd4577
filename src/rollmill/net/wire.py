"""Which way requests take to a server: straight, or through the proxies that the process's environment names."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from rollmill.net.connection import Answer, CallDeadlines
from rollmill.net.transport import Transport


class Wire(Protocol):
    """What carries requests to servers: our own transport, or the one through proxies."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None: ...

    async def post(self, url: str, body: bytes, lines: bytes = b"") -> Answer: ...

    async def get(self, url: str) -> Answer: ...


def wire(
    headers: Mapping[str, str],
    query: Mapping[str, str],
    limits: CallDeadlines,
    max_body: int,
    *,
    once: bool = False,
) -> Wire:
    """Our own way to a server, or the one through the proxies that the process's environment names.

    With `once`, nothing is sent twice that the server may have seen.
    """
    proxies = urllib.request.getproxies()
    if any(proxies.get(scheme) for scheme in ("http", "https", "all")):
        from rollmill.net.proxied import Proxied

        return Proxied(proxies, headers, query, limits, max_body, once=once)
    return Transport(headers, query, limits, max_body, once=once)
