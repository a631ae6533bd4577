"""Which slots an input asks for, and which of them are still owed. Fixed in input order, before anything is played."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rollmill.errors import ConfigError
from rollmill.store.index import Held, Index, TaskRow
from rollmill.types import Slot

_DENSE = 1 << 26


class Wanted(NamedTuple):
    """A row of the input. `given` are the indices that it brings with it."""

    agent: str
    identity: bytes
    given: int | None = None
    given_rollout: int | None = None


class Owed(NamedTuple):
    """What one row of the input asks for: the slots to play, and how many have ended."""

    slots: list[Slot]
    held: int
    failed: int
    """Those of the held that failed for good."""


class Ledger:
    """One pass through an input. A byte or two for each task is all that stays in memory.

    A task keeps one index for ever; a new one gets the next that is free, so that after a crash the tasks that were
    running get the indices they had.
    """

    def __init__(self, index: Index, *, retry_failed: bool = False) -> None:
        self._index = index
        self._retry_failed = retry_failed
        self._occurrences = _Counts()
        self._numbers = _Counts()
        self._used = _Used(index.task_indices)
        self._bumped: defaultdict[int, set[int]] = defaultdict(set)

    def plan(self, rows: Sequence[Wanted], repeats: Callable[[str], int]) -> tuple[list[Owed], list[int]]:
        """What these rows ask for, and the index's own numbers of their tasks."""
        tasks, known = self._tasks(rows)
        held = self._index.held(tasks[n].task_index for n in known) if known else {}
        owed = [self._owed(row, task, held, repeats(row.agent)) for row, task in zip(rows, tasks, strict=True)]
        return owed, [task.id for task in tasks]

    def recall(self, source: str, number: int, hashes: bytes) -> list[Wanted] | None:
        """The rows of a stretch of an input that has not changed since it was read before."""
        found = self._index.seen(source, number)
        if found is None or found[0] != hashes:
            return None
        ids = array("Q", found[1])
        rows = self._index.task_rows(ids)
        return [Wanted(rows[id][0], rows[id][1]) for id in ids] if all(id in rows for id in ids) else None

    def remember(self, source: str, number: int, hashes: bytes, tasks: Sequence[int]) -> None:
        self._index.begin()
        self._index.note_seen(source, number, hashes, array("Q", tasks).tobytes())
        self._index.commit()

    def _tasks(self, rows: Sequence[Wanted]) -> tuple[list[TaskRow], list[int]]:
        """The task of every row, and which rows have one that was known before."""
        keys = [(row.agent, row.identity) for row in rows]
        tasks = self._index.tasks(list(dict.fromkeys(keys)))
        known = [n for n, key in enumerate(keys) if key in tasks]
        missing = {key: row.given for key, row in zip(reversed(keys), reversed(rows), strict=True) if key not in tasks}
        if missing:
            # Back in input order, and the first of equal rows decides.
            new = [
                (agent, identity, *self._claimed(missing[agent, identity]))
                for agent, identity in dict.fromkeys(key for key in keys if key in missing)
            ]
            self._index.begin()
            added = self._index.add_tasks(new)
            self._index.commit()
            tasks |= {(agent, identity): row for (agent, identity, _, _), row in zip(new, added, strict=True)}
        return [tasks[key] for key in keys], known

    def _claimed(self, given: int | None) -> tuple[int, bool]:
        if given is None:
            return self._used.next_free(), False
        if self._used.ours(given):
            raise ConfigError(
                f"a row brings _ng_task_index {given}, which another task has got in this output already: "
                "give every row an index of its own, or none"
            )
        self._used.add(given, given=True)
        return given, True

    def _owed(self, row: Wanted, task: TaskRow, held: dict[int, dict[int, list[Held]]], repeats: int) -> Owed:
        occurrence = self._occurrences.next(task.id)
        of_index = held.get(task.task_index, {})
        ended = {(one.occurrence, one.repeat): one for one in of_index.get(task.id, ())}
        slots, count, failed = [], 0, 0
        for repeat in range(repeats):
            one = ended.get((occurrence, repeat))
            natural = self._natural(row, task, occurrence, repeat, repeats)
            if one is not None and not (one.failed and self._retry_failed):
                count += 1
                failed += one.failed
                continue
            number = one.rollout_index if one is not None else self._free_number(task.task_index, natural, of_index)
            identity = row.identity.hex()
            slots.append(Slot(row.agent, identity, occurrence, repeat, task.task_index, number))
        return Owed(slots, count, failed)

    def _natural(self, row: Wanted, task: TaskRow, occurrence: int, repeat: int, repeats: int) -> int:
        if row.given_rollout is not None:
            return row.given_rollout + repeat
        # Several tasks may bring one index: they are numbered as they come.
        return self._numbers.next(task.task_index) if task.given else occurrence * repeats + repeat

    def _free_number(self, index: int, number: int, of_index: dict[int, list[Held]]) -> int:
        """Another number where this one is another rollout's: played when repeats or the input were others."""
        taken = {one.rollout_index for of_task in of_index.values() for one in of_task}
        bumped = self._bumped.get(index, ())
        if number not in taken and number not in bumped:
            return number
        while number in taken or number in self._bumped[index]:
            number += 1
        self._bumped[index].add(number)
        return number


class _Counts:
    """How often each number was met; a byte for each, as long as they are dense."""

    def __init__(self) -> None:
        self._small = bytearray()
        self._large: dict[int, int] = {}

    def next(self, number: int) -> int:
        if number >= _DENSE:
            count = self._large.get(number, 0)
            self._large[number] = count + 1
            return count
        if number >= len(self._small):
            self._small.extend(bytes(number + 4096 - len(self._small)))
        count = self._small[number]
        if count < 255:
            self._small[number] = count + 1
            return count
        count = self._large.get(number, 255)
        self._large[number] = count + 1
        return count


class _Used:
    """Which task indices are taken, read when the first is asked for."""

    def __init__(self, taken: Callable[[], Iterator[tuple[int, bool]]]) -> None:
        self._taken: Callable[[], Iterator[tuple[int, bool]]] | None = taken
        self._dense = bytearray()
        self._sparse: dict[int, int] = {}
        self._free = 0

    def next_free(self) -> int:
        while self._get(self._free):
            self._free += 1
        self.add(self._free, given=False)
        return self._free

    def ours(self, index: int) -> bool:
        return self._get(index) == _OURS

    def add(self, index: int, *, given: bool) -> None:
        mark = _GIVEN if given else _OURS
        if index >= _DENSE:
            self._sparse[index] = mark
            return
        if index >= len(self._dense):
            self._dense.extend(bytes(index + 4096 - len(self._dense)))
        self._dense[index] = mark

    def _get(self, index: int) -> int:
        if self._taken is not None:
            taken, self._taken = self._taken, None
            for used, given in taken():
                self.add(used, given=given)
        if index >= _DENSE:
            return self._sparse.get(index, 0)
        return self._dense[index] if index < len(self._dense) else 0


_OURS, _GIVEN = 1, 2
