"""Deadlines for many things at once with one timer: setting one costs no timer of its own."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

_SLACK_S = 0.001


class Watch:
    """Cancels what is overdue. For one event loop."""

    def __init__(self) -> None:
        self._running: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    def within(self, seconds: float) -> Deadline:
        """Enter it; what takes longer ends with `TimeoutError`, and `expired` says that it was this deadline."""
        return Deadline(self, seconds)

    def add(self, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> None:
        self._running.add(deadline)
        if deadline.until < self._due:
            self._arm(deadline.until, loop)

    def remove(self, deadline: Deadline) -> None:
        self._running.discard(deadline)
        if not self._running and self._timer is not None:
            self._timer.cancel()
            self._timer, self._due = None, math.inf

    def _arm(self, due: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer may be that of something which has ended: then the next one is found."""
        self._timer, self._due = None, math.inf
        now = loop.time() + _SLACK_S
        soonest = math.inf
        for deadline in [*self._running]:
            if deadline.until <= now:
                deadline.expire()
            elif deadline.until < soonest:
                soonest = deadline.until
        if soonest < math.inf:
            self._arm(soonest, loop)


class Deadline:
    """One bounded stretch of a task's work."""

    __slots__ = ("_cancelling", "_seconds", "_task", "_watch", "expired", "until")

    def __init__(self, watch: Watch, seconds: float) -> None:
        self._watch, self._seconds = watch, seconds
        self._task: asyncio.Task[object] | None = None
        self.expired = False
        self.until = math.inf

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a deadline needs a task")
        self._cancelling = self._task.cancelling()
        self.until = loop.time() + self._seconds
        self._watch.add(self, loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.remove(self)
        # As in asyncio.timeout: a cancellation that somebody else asked for, too, passes.
        if not self.expired or self._task is None or self._task.uncancel() > self._cancelling:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def expire(self) -> None:
        self._watch.remove(self)
        self.expired = True
        if self._task is not None:
            self._task.cancel()
