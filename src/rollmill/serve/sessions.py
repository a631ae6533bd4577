"""Environments that live behind a service: one for each client's cookie, and none for ever."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rollmill.environment import Environment
from rollmill.serve.http import Problem

SESSION_ENDED = "session_ended"
_SWEEP_S = 5.0


class Session:
    """One world, from its task to its verification, to its end, or until nobody has asked for a while."""

    __slots__ = ("busy", "ended", "used", "world")

    def __init__(self, world: Environment[Any], now: float) -> None:
        self.world = world
        self.used = now
        self.busy = 0
        self.ended = False


class Sessions:
    """All that a service holds. Whoever enters one holds it open; one that has ended is closed when nobody does."""

    def __init__(
        self,
        close: Callable[[Environment[Any]], Awaitable[None]],
        *,
        idle_s: float = 3600.0,
        most: int = 16_384,
        place: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`place` begins every id, so that it says which of several processes holds it."""
        self._close = close
        self._idle_s, self._most, self._place, self._clock = idle_s, most, place, clock
        self._held: dict[str, Session] = {}
        self._coming = 0
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, id: str) -> bool:
        return id in self._held

    def begin(self, world: Environment[Any], id: str = "") -> str:
        """The id under which a world is found; one that the client had under its id ends."""
        if id in self._held:
            self.end(id)
        else:
            id = self._place + secrets.token_urlsafe(24)
        self._held[id] = Session(world, self._clock())
        return id

    @contextmanager
    def room(self) -> Iterator[None]:
        """Keeps a place for a world while it is built. Raises `Problem` where there are as many as there may be."""
        if len(self._held) + self._coming >= self._most:
            again = (("Retry-After", "1"),)
            raise Problem(503, "full", f"{self._most:,} sessions are open, and no more may be", headers=again)
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    @contextmanager
    def entered(self, id: str) -> Iterator[Session]:
        """Raises `Problem` where there is no such session."""
        session = self._held.get(id)
        if session is None and id:
            raise Problem(410, SESSION_ENDED, "this session has ended: post a task to /seed_session")
        if session is None:
            raise Problem(
                409, "no_session", "no session: post a task to /seed_session, and send the cookie that comes back"
            )
        session.busy += 1
        try:
            yield session
        finally:
            session.busy -= 1
            session.used = self._clock()
            if session.ended and not session.busy:
                self._let_go(session)

    def end(self, id: str) -> None:
        session = self._held.pop(id, None)
        if session is not None:
            session.ended = True
            if not session.busy:
                self._let_go(session)

    def sweep(self) -> None:
        """End what nobody has used for a while."""
        since = self._clock() - self._idle_s
        for id in [id for id, session in self._held.items() if not session.busy and session.used <= since]:
            self.end(id)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._idle_s))
            self.sweep()

    async def close(self) -> None:
        """End all of them."""
        for id in list(self._held):
            self._held[id].busy = 0
            self.end(id)
        while self._closing:
            await asyncio.wait(self._closing)

    def _let_go(self, session: Session) -> None:
        # Not twice, however many were inside.
        session.busy = -math.inf  # type: ignore[assignment]
        task = asyncio.get_running_loop().create_task(self._closed(session.world))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, world: Environment[Any]) -> None:
        await self._close(world)
