"""Which slots are to be played: tasks times repeats, in input order, without those that the output holds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from rollmill.collection.source import Growing, Source
from rollmill.collection.stretch import Planned, Stretch
from rollmill.collection.worker import Job
from rollmill.errors import ConfigError
from rollmill.store.ledger import Ledger, Owed, Wanted
from rollmill.types import Slot, Task

LOOK_AHEAD = 512
"""How many jobs wait at most to be played."""


class Plan:
    """A stream of jobs. Indices are fixed here, before anything is played, so that a crash does not move them."""

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        *,
        repeats: Callable[[str], int] = lambda _: 1,
        overrides: Mapping[str, Any] | None = None,
        seed: int | None = None,
        meet: Callable[[str], None] = lambda _: None,
        skip: Callable[[ConfigError], None] | None = None,
    ) -> None:
        """`meet` hears of every agent before its first row; `skip` of bad rows, which without it stop the plan.

        With a `seed`, every slot is asked with one of its own that follows from it.
        """
        self._source = source
        self._ledger = ledger
        self._repeats = repeats
        self._overrides = dict(overrides or {})
        self._seed = seed
        self._meet = meet
        self._skip = skip
        self._met: set[str] = set()
        self.tasks = self.planned = self.held = self.held_failed = 0
        """What was read so far: rows, slots, and the slots that had ended already."""

    def __iter__(self) -> Iterator[Job]:
        """Those of all rows that are there now."""
        for jobs in self.stretches():
            if jobs is None:
                return
            yield from jobs

    def stretches(self) -> Iterator[list[Job] | None]:
        """The jobs of some rows after the other; an empty list where all of them have ended, None where none came."""
        for stretch in self._source.stretches():
            for part in stretch.gone:
                self._ledger.withdraw(part)
            if not len(stretch):
                yield None
                continue
            known = self._ledger.recall(stretch.source, stretch.number, stretch.hash) if stretch.hash else None
            yield self._recalled(stretch, known) if known is not None else self._parsed(stretch)

    def _recalled(self, stretch: Stretch, known: list[Wanted]) -> list[Job]:
        for agent in {wanted.agent for wanted in known}:
            self._introduce(agent)
        owed, _ = self._ledger.plan(known, self._repeats, stretch.part)
        self._count(owed)
        return [job for place, one in enumerate(owed) if one.slots for job in self._jobs(stretch[place].task, one)]

    def _parsed(self, stretch: Stretch) -> list[Job]:
        rows = list(self._good(stretch))
        for planned in rows:
            self._introduce(planned.agent)
        wanted = [_wanted(planned) for planned in rows]
        owed, tasks = self._ledger.plan(wanted, self._repeats, stretch.part)
        self._count(owed)
        # A row that brings an index is parsed for it again.
        if stretch.hash and len(rows) == len(stretch) and all(one.given is None for one in wanted):
            self._ledger.remember(stretch.source, stretch.number, stretch.hash, tasks)
        return [job for planned, one in zip(rows, owed, strict=True) for job in self._jobs(planned.task, one)]

    def _good(self, stretch: Stretch) -> Iterator[Planned]:
        for place in range(len(stretch)):
            try:
                yield stretch[place]
            except ConfigError as error:
                if self._skip is None:
                    raise
                self._skip(error)

    def _introduce(self, agent: str) -> None:
        if agent not in self._met:
            self._meet(agent)
            self._met.add(agent)

    def _count(self, owed: list[Owed]) -> None:
        self.tasks += len(owed)
        for one in owed:
            self.held += one.held
            self.held_failed += one.failed
            self.planned += one.held + len(one.slots)

    def _jobs(self, task: Task, owed: Owed) -> Iterator[Job]:
        if not owed.slots:
            return
        asked = task.with_params(self._overrides)
        for slot in owed.slots:
            yield Job(slot, asked if self._seed is None else asked.with_params({"seed": _seed_of(slot, self._seed)}))


class Feed:
    """The jobs that come next, agents taking turns: one whose environment is full does not hold up the others."""

    def __init__(
        self, plan: Plan, growing: Growing | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`growing` is the plan's source, if that may have more rows later."""
        self._stretches = plan.stretches()
        self._growing, self._clock = growing, clock
        self._queues: dict[str, deque[Job]] = {}
        self._size = 0
        self._waiting_since: float | None = None
        self.exhausted = False

    @property
    def grows(self) -> bool:
        return self._growing is not None

    @property
    def waits(self) -> bool:
        """Whether all rows are read that have come, and more may come."""
        return self._waiting_since is not None and not self.exhausted

    @property
    def waited_s(self) -> float | None:
        """How long it has waited for rows; None where it does not."""
        return self._clock() - self._waiting_since if self._waiting_since is not None and self.waits else None

    async def arrival(self) -> None:
        """Returns when it is worth reading again, where it waits for rows."""
        if self._growing is not None:
            await self._growing.arrival()

    def finish(self) -> None:
        """What is there is all of it: reading goes on to its end."""
        if self._growing is not None:
            self._growing.finish()

    def settle(self) -> None:
        """Nothing more will be read. If it waited for rows, what has come is all there was."""
        self.exhausted = self.exhausted or (self.waits and not self._size)

    def take(self, has_room: Callable[[str], bool] = lambda _: True) -> Job | None:
        for agent, queue in self._queues.items():
            if queue and has_room(agent):
                # Its next turn comes after the others'.
                self._queues[agent] = self._queues.pop(agent)
                self._size -= 1
                return queue.popleft()
        return None

    @property
    def size(self) -> int:
        return self._size

    def read(self) -> None:
        """Read some rows more, unless enough wait already. Raises `ConfigError` for a bad row."""
        if self.exhausted or self._size >= LOOK_AHEAD:
            return
        try:
            jobs = next(self._stretches)
        except StopIteration:
            self.exhausted = True
            return
        if jobs is None:
            self._waiting_since = self._clock() if self._waiting_since is None else self._waiting_since
            return
        self._waiting_since = None
        for job in jobs:
            self._queues.setdefault(job.slot.agent, deque()).append(job)
        self._size += len(jobs)


def _wanted(planned: Planned) -> Wanted:
    identity = bytes.fromhex(planned.task.identity)
    return Wanted(planned.agent, identity, planned.task_index, planned.rollout_index)


def _seed_of(slot: Slot, seed: int) -> int:
    """Any number that providers take as a seed: below 2**31."""
    digest = blake2b(f"{seed}/{slot.key}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
