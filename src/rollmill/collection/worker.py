"""What plays: the collector knows workers by these messages alone."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Protocol

from msgspec import Raw, Struct

from rollmill.store.schema import Entry
from rollmill.types import Rollout, Slot, Task


class Job(Struct, frozen=True):
    """One attempt at one slot."""

    slot: Slot
    task: Task
    attempt: int = 1


class Played(Struct, frozen=True):
    """One attempt, ready to be recorded."""

    entry: Entry
    row: bytes = b""
    """The line of the output, where it was rewarded."""
    response: Raw = Raw(b"null")
    """What had happened, where it failed."""
    rollout: Rollout | None = None
    """The record itself, where it was played in this process."""


class Pressure(Struct, frozen=True):
    """What stands between a worker and its models."""

    calls: int = 0
    """Model calls in flight."""
    limit: int | None = None
    """How many there may be; None where only the number of rollouts bounds them."""
    waiting: int = 0
    retries: dict[str, int] = {}
    permit_s: float = 0.0
    """Time that calls have waited for a place, for the rate, and after faults."""
    rate_s: float = 0.0
    backoff_s: float = 0.0
    paused: str = ""
    """Why nothing is asked at the moment, if so."""
    workers: int = 0
    """Processes that play beside the command's own, and the CPU that they have taken."""
    workers_cpu_s: float = 0.0

    def __add__(self, other: Pressure) -> Pressure:
        kinds = self.retries.keys() | other.retries.keys()
        return Pressure(
            calls=self.calls + other.calls,
            limit=None if self.limit is None or other.limit is None else self.limit + other.limit,
            waiting=self.waiting + other.waiting,
            retries={kind: self.retries.get(kind, 0) + other.retries.get(kind, 0) for kind in sorted(kinds)},
            permit_s=self.permit_s + other.permit_s,
            rate_s=self.rate_s + other.rate_s,
            backoff_s=self.backoff_s + other.backoff_s,
            paused=self.paused or other.paused,
            workers=self.workers + other.workers,
            workers_cpu_s=self.workers_cpu_s + other.workers_cpu_s,
        )


def together(pressures: Iterable[Pressure]) -> Pressure:
    """Of several models or workers."""
    found = list(pressures)
    return functools.reduce(operator.add, found) if found else Pressure()


class Worker(Protocol):
    """Plays whole rollouts, many at once."""

    async def play(self, job: Job) -> Played: ...

    def drain(self) -> None:
        """Give up what only waits to try again: its failure is of the kind `drained`, and the slot is owed."""


class Admission(Protocol):
    """Who may begin."""

    def room(self, agent: str) -> bool: ...

    def enter(self, agent: str) -> None: ...

    def leave(self, agent: str) -> None: ...

    async def changed(self) -> None:
        """Returns when there may be room where there was none."""
        ...


class Crew(Worker, Protocol):
    """A worker that knows how much it can do."""

    @property
    def admission(self) -> Admission: ...

    def pressure(self) -> Pressure: ...
