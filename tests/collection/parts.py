"""What the tests of collecting are made of: rows in memory, what became of a slot, and a worker without a model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import rollmill as rm
from rollmill.collection.source import Survey
from rollmill.collection.stretch import STRETCH, Planned, Stretch, none_yet
from rollmill.collection.worker import Job, Played
from rollmill.store.index import Index
from rollmill.store.lines import Place
from rollmill.store.schema import Entry


class Rows:
    """A source in memory."""

    name = "rows"

    def __init__(self, rows: Sequence[Planned], size: int = STRETCH) -> None:
        self._rows, self._size = rows, size

    def files(self) -> list[Path]:
        return []

    def stretches(self) -> Iterator[Stretch]:
        for number, start in enumerate(range(0, len(self._rows), self._size)):
            yield Stretch(self.name, number, self._rows[start : start + self._size], lambda planned: planned)

    def survey(self, *, skip_bad: bool = False) -> Survey:
        return Survey(Counter(planned.agent for planned in self._rows), len(self._rows))

    def count(self) -> int | None:
        return len(self._rows)


class Growing(Rows):
    """The same, to which more come while it is read, until it is to be finished."""

    def __init__(self) -> None:
        self.coming: list[list[Planned]] = []
        self.looks = 0
        self._finishing = False
        self._came = asyncio.Event()

    def come(self, *some: list[Planned]) -> None:
        self.coming += some
        self._came.set()

    def stretches(self) -> Iterator[Stretch]:
        number = 0
        while True:
            self.looks += 1
            if self.coming:
                number += 1
                yield Stretch(self.name, number, self.coming.pop(0), lambda planned: planned)
            elif self._finishing:
                return
            else:
                yield none_yet()

    async def arrival(self) -> None:
        await self._came.wait()
        self._came.clear()

    def finish(self) -> None:
        self._finishing = True


def tasks(*texts: str, agent: str = "agent") -> list[Planned]:
    return [Planned(agent, rm.Task.of(text)) for text in texts]


def numbered(count: int, agent: str = "agent") -> list[Planned]:
    return tasks(*(f"task {number}" for number in range(count)), agent=agent)


FAILED = rm.Failure("tool", "error", "a bug")


def entry(
    reward: float | None = 1.0, slot: rm.Slot | None = None, failure: rm.Failure | None = None, **fields: Any
) -> Entry:
    """What became of a slot: a reward, or the failure that took its place."""
    slot = slot or rm.Slot("agent", rm.Task.of("x").identity)
    if failure is not None:
        return Entry(slot=slot, stop="failed", failure=failure, **fields)
    return Entry(slot=slot, **{"stop": "done", "reward": reward, "model": "m"} | fields)


def hold(index: Index, *entries: Entry) -> None:
    """Write down that these slots have ended."""
    with index.transaction():
        index.add([(one, Place(0, 1)) for one in entries])


class Player:
    """A worker that ends every rollout as it is told, and counts how many ran at once."""

    def __init__(self, play: Callable[[Job], Any] = lambda job: None) -> None:
        """`play` gives the failure of a job, or nothing; it may be a coroutine."""
        self._play = play
        self.running = self.most = 0
        self.by_agent: Counter[str] = Counter()
        self.drained = False

    async def play(self, job: Job) -> Played:
        self.running += 1
        self.by_agent[job.slot.agent] += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            failure = self._play(job)
            if asyncio.iscoroutine(failure):
                failure = await failure
            return Played(entry(1.0, job.slot, failure, attempt=job.attempt), row=b"{}")
        finally:
            self.running -= 1

    def drain(self) -> None:
        self.drained = True


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


class Clock:
    """A clock that stands still until `now` is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
