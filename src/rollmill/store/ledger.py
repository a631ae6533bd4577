"""Which slots an output holds, and the index of every task in it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollmill.store.schema import Summary
from rollmill.types import Slot


class Ledger:
    """Read from the journal, kept up while it grows. A task keeps one index for ever; a new task gets the next free.

    After a crash the tasks that were running are new once more: taken in input order, they get the indices they had.
    """

    def __init__(self, *, reserved: Iterable[int] = ()) -> None:
        """`reserved` indices are for the rows that bring them."""
        self._done: set[str] = set()
        self._index: dict[str, int] = {}
        self._used: set[int] = set(reserved)
        self._free = 0
        self._taken: set[tuple[int, int]] = set()
        self.doubled = 0

    def add(self, summary: Summary) -> bool:
        """Count a stored row; False if its slot was there already."""
        slot = summary.slot
        if slot.key in self._done:
            self.doubled += 1
            return False
        self._done.add(slot.key)
        self._taken.add((slot.task_index, slot.rollout_index))
        self._place(slot.task, slot.task_index)
        return True

    def holds(self, slot: Slot) -> bool:
        return slot.key in self._done

    def indexed(self, slot: Slot, repeats: int, given: int | None = None) -> Slot:
        """The slot with the indices that it has in this output, before it is played and for ever after."""
        task = self._index.get(slot.task, self._next_free()) if given is None else given
        self._place(slot.task, task)
        # A task that stands in the input twice is played twice as often, under one index.
        number = slot.occurrence * repeats + slot.repeat
        if not self.holds(slot):
            while (task, number) in self._taken:
                number += 1
            self._taken.add((task, number))
        return msgspec.structs.replace(slot, task_index=task, rollout_index=number)

    def _next_free(self) -> int:
        while self._free in self._used:
            self._free += 1
        return self._free

    def _place(self, task: str, index: int) -> None:
        self._index.setdefault(task, index)
        self._used.add(index)
