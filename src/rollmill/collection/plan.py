"""Which slots are to be played: tasks times repeats, in input order, without those that the output holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rollmill.collection.source import Planned
from rollmill.collection.worker import Job
from rollmill.store.ledger import Ledger
from rollmill.types import Slot, Task


class Plan:
    """A stream of jobs. Indices are fixed here, before anything is played, so that a crash does not move them."""

    def __init__(
        self,
        tasks: Iterable[Planned],
        ledger: Ledger,
        *,
        repeats: Callable[[str], int] = lambda _: 1,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self._tasks = tasks
        self._ledger = ledger
        self._repeats = repeats
        self._overrides = overrides or {}

    def __iter__(self) -> Iterator[Job]:
        for task, slot in self._slots():
            indexed = self._ledger.indexed(slot, self._repeats(slot.agent), task.get("_ng_task_index"))
            if not self._ledger.holds(slot):
                yield Job(indexed, task.with_params(self._overrides))

    def held(self) -> int:
        """How many of its slots the output holds already. Reads the tasks through."""
        return sum(self._ledger.holds(slot) for _, slot in self._slots())

    def _slots(self) -> Iterator[tuple[Task, Slot]]:
        seen: Counter[tuple[str, str]] = Counter()
        for planned in self._tasks:
            key = planned.agent, planned.task.identity
            for repeat in range(self._repeats(planned.agent)):
                yield planned.task, Slot(*key, occurrence=seen[key], repeat=repeat)
            seen[key] += 1
