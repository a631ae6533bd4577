"""The connections to one server: opened when they are needed, kept for a while, the latest used first."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections import deque
from typing import Self
from urllib.parse import urlsplit

from msgspec import Struct

from rollmill.net.connection import Answer, BrokenError, CallDeadlines, Connection, LateError, StaleError, reason

IDLE_S = 15.0
"""Servers close a connection that rests for 30 to 75 s; ours are closed before."""
_LOOK_UP_AGAIN_S = 60.0
_CLOSING_S = 1.0
_HOST = re.compile(r"[A-Za-z0-9._-]+")


class Origin(Struct, frozen=True):
    """A server, as a URL names it."""

    tls: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """Raises ValueError for what is no URL of HTTP."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(url)
        # A port that is none is refused when it is read.
        port = parts.port
        if port == 0:
            raise ValueError(url)
        tls = parts.scheme == "https"
        return cls(tls, _host(parts.hostname), port or (443 if tls else 80))

    @property
    def loopback(self) -> bool:
        return self.host == "localhost" or (_is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    @property
    def header(self) -> str:
        """What the request calls it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def _host(host: str) -> str:
    if _is_address(host):
        return host
    # Names with letters of other alphabets; UnicodeError is a ValueError.
    name = host if host.isascii() else host.encode("idna").decode()
    if not _HOST.fullmatch(name):
        raise ValueError(host)
    return name


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


class Pool:
    """As many connections to one server as there are requests at once: who calls bounds that, not this.

    A server may close a connection that rests in the moment in which it is used again, and the request is then sent
    anew. With `once` it is not, for a server that takes a request and dies looks the same.
    """

    def __init__(
        self, origin: Origin, limits: CallDeadlines, max_body: int, tls: ssl.SSLContext | None, *, once: bool = False
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._origin, self._limits, self._max_body, self._tls = origin, limits, max_body, tls
        self._once = once
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._known = [origin.host] if _is_address(origin.host) else []
        self._known_until = float("inf") if self._known else 0.0
        self._search: asyncio.Task[None] | None = None

    async def ask(self, request: bytes, end: float) -> Answer:
        """The answer to a request."""
        connection = self._rested()
        if connection is not None:
            try:
                return await self._ask(connection, request, end)
            except StaleError as error:
                if self._once:
                    raise BrokenError(str(error)) from None
        return await self._ask(await self._connect(end), request, end)

    async def close(self) -> None:
        """Drop every connection, and wait until their sockets are closed."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._search is not None:
            self._search.cancel()
        lost = [connection.lost for connection in self._all]
        for connection in list(self._all):
            connection.close()
        if lost:
            await asyncio.wait(lost, timeout=_CLOSING_S)

    async def _ask(self, connection: Connection, request: bytes, end: float) -> Answer:
        try:
            answer = await connection.ask(request, end)
        except BaseException:
            # Also one that was cancelled: a late answer must never be read as the next one's.
            connection.close()
            raise
        if connection.reusable and not self._closed:
            self._rest(connection)
        else:
            connection.close()
        return answer

    def _rested(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and not (self._once and not connection.quiet):
                return connection
            connection.close()
        return None

    def _rest(self, connection: Connection) -> None:
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S / 2, self._close_idle)

    def _close_idle(self) -> None:
        # The latest is used first, so those that rested longest are on the left.
        since = self._loop.time() - IDLE_S
        while self._idle and (self._idle[0].idle_since <= since or not self._idle[0].open):
            self._idle.popleft().close()
        self._sweep = self._loop.call_later(IDLE_S / 2, self._close_idle) if self._idle else None

    async def _connect(self, end: float) -> Connection:
        allowed = min(self._limits.connect_s, end - self._loop.time())
        try:
            return await self._reach(self._loop.time() + allowed)
        except TimeoutError as error:
            self._forget()
            if error.errno is None:
                raise LateError(f"no connection in {allowed:g} s", reached=False) from None
            raise BrokenError(reason(error), reached=False) from None
        except OSError as error:
            self._forget()
            raise BrokenError(reason(error), reached=False) from None

    async def _reach(self, by: float) -> Connection:
        """A connection to the first of the addresses that takes one; each has its share of the time."""
        async with asyncio.timeout_at(by):
            addresses = await self._addresses()
        fault = OSError("the name has no address")
        for number, address in enumerate(addresses):
            try:
                async with asyncio.timeout((by - self._loop.time()) / (len(addresses) - number)):
                    connection = await self._dial(address)
            except OSError as error:
                fault = error
            else:
                # The next ones try what worked.
                self._known = [address, *(other for other in addresses if other != address)]
                return connection
        raise fault

    async def _dial(self, address: str) -> Connection:
        connection = Connection(self._limits, self._max_body)
        try:
            await self._loop.create_connection(
                lambda: connection,
                address,
                self._origin.port,
                ssl=self._tls,
                server_hostname=self._origin.host if self._tls else None,
            )
        except BaseException:
            # A deadline can fall between the last step of the handshake and this line.
            connection.close()
            raise
        if self._closed:
            connection.close()
            raise BrokenError("the client was closed")
        self._all.add(connection)
        connection.lost.add_done_callback(lambda _: self._all.discard(connection))
        return connection

    async def _addresses(self) -> list[str]:
        """What the name stands for: looked up once for all who ask at the same time."""
        if self._loop.time() >= self._known_until:
            if self._search is None:
                self._search = self._loop.create_task(self._look_up())
                self._search.add_done_callback(self._looked_up)
            await asyncio.shield(self._search)
        return self._known

    async def _look_up(self) -> None:
        found = await self._loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)
        self._known = list(dict.fromkeys(str(address[0]) for *_, address in found))
        self._known_until = self._loop.time() + _LOOK_UP_AGAIN_S

    def _looked_up(self, search: asyncio.Task[None]) -> None:
        self._search = None
        # Whoever waits for it gets the exception; nobody may be left.
        if not search.cancelled():
            search.exception()

    def _forget(self) -> None:
        """A name may stand for another server by now."""
        if not _is_address(self._origin.host):
            self._known_until = 0.0
