"""Which slots an input asks for, and which of them are still owed. Fixed in input order, before anything is played."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rollmill.errors import ConfigError
from rollmill.store.index import Held, Index, NewTask, TaskKey, TaskRow
from rollmill.types import Slot

_DENSE = 1 << 26
_FULL = 255


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

    A part of the input may be withdrawn, as a file that is replaced: as many of its rows as come back are the same
    rows, for which nothing more is asked. So equal rows count as often as they stand in the input at one time.
    """

    def __init__(self, index: Index, *, run: str = "", retry_failed: bool = False) -> None:
        """`run` is noted beside what it asks for."""
        self._index, self._run = index, run
        self._retry_failed = retry_failed
        self._occurrences = _Counts()
        self._numbers = _Counts()
        self._used = _Used(index.task_indices)
        self._bumped: defaultdict[int, set[int]] = defaultdict(set)
        self._parts: defaultdict[int, _Numbers] = defaultdict(_Numbers)
        self._withdrawn = _Counts()

    def plan(
        self, rows: Sequence[Wanted], repeats: Callable[[str], int], part: int = 0
    ) -> tuple[list[Owed], list[int]]:
        """What these rows ask for, and the index's own numbers of their tasks. They are of a `part`, if it has one."""
        tasks, known = self._tasks(rows, repeats)
        # A task that is new has no rollouts, but an index that its row brought may have those of others.
        held = self._index.held(task.task_index for task in tasks if task.id in known or task.given)
        owed = [self._owed(row, task, held, repeats(row.agent)) for row, task in zip(rows, tasks, strict=True)]
        if known:
            self._note_asked(rows, tasks, known, repeats)
        ids = [task.id for task in tasks]
        if part:
            self._parts[part].add(ids)
        return owed, ids

    def withdraw(self, part: int) -> None:
        """What was read of a part is in the input no more."""
        for id in self._parts.pop(part, ()):
            self._withdrawn.next(id)

    def recall(self, source: str, number: int, digest: bytes) -> list[Wanted] | None:
        """The rows of a stretch of an input that has not changed since it was read before."""
        found = self._index.seen(source, number)
        if found is None or found[0] != digest:
            return None
        ids = array("Q", found[1])
        rows = self._index.task_rows(ids)
        return [Wanted(rows[id][0], rows[id][1]) for id in ids] if all(id in rows for id in ids) else None

    def remember(self, source: str, number: int, digest: bytes, tasks: Sequence[int]) -> None:
        with self._index.transaction():
            self._index.note_seen(source, number, digest, array("Q", tasks).tobytes())

    def _tasks(self, rows: Sequence[Wanted], repeats: Callable[[str], int]) -> tuple[list[TaskRow], set[int]]:
        """The task of every row, and the numbers of those that were known before."""
        keys = [(row.agent, row.identity) for row in rows]
        tasks = self._index.tasks(dict.fromkeys(keys))
        known = {task.id for task in tasks.values()}
        counts: dict[TaskKey, int] = {}
        given: dict[TaskKey, int | None] = {}
        for key, row in zip(keys, rows, strict=True):
            if key not in tasks:
                counts[key] = counts.get(key, 0) + 1
                # The first of equal rows decides.
                given.setdefault(key, row.given)
        if counts:
            new = [self._new(key, given[key], count * repeats(key[0])) for key, count in counts.items()]
            with self._index.transaction():
                added = self._index.add_tasks(new, self._run)
            tasks |= zip(counts, added, strict=True)
        return [tasks[key] for key in keys], known

    def _note_asked(
        self, rows: Sequence[Wanted], tasks: Sequence[TaskRow], known: Collection[int], repeats: Callable[[str], int]
    ) -> None:
        """What this pass asks for of a known task may be more than what any before it did."""
        asked = {
            (row.agent, row.identity): task._replace(asked=count)
            for row, task in zip(rows, tasks, strict=True)
            if task.id in known and (count := self._occurrences.get(task.id) * repeats(row.agent)) > task.asked
        }
        if asked:
            with self._index.transaction():
                self._index.raise_asked(asked, self._run)

    def _new(self, key: TaskKey, given: int | None, asked: int) -> NewTask:
        agent, identity = key
        if given is None:
            return NewTask(agent, identity, self._used.next_free(), False, asked)
        if self._used.ours(given):
            raise ConfigError(
                f"a row brings _ng_task_index {given}, which another task has got in this output already: "
                "give every row an index of its own, or none"
            )
        self._used.add(given, given=True)
        return NewTask(agent, identity, given, True, asked)

    def _owed(self, row: Wanted, task: TaskRow, held: Mapping[int, Mapping[int, Sequence[Held]]], repeats: int) -> Owed:
        if self._withdrawn.take(task.id):
            return Owed([], 0, 0)
        occurrence = self._occurrences.next(task.id)
        identity = row.identity.hex()
        of_index = held.get(task.task_index, {})
        ended = {(one.occurrence, one.repeat): one for one in of_index.get(task.id, ())} if of_index else {}
        slots, count, failed = [], 0, 0
        for repeat in range(repeats):
            one = ended.get((occurrence, repeat))
            natural = self._natural(row, task, repeat, repeats)
            if one is not None and not (one.failed and self._retry_failed):
                count += 1
                failed += one.failed
                continue
            number = one.rollout_index if one is not None else self._free_number(task.task_index, natural, of_index)
            slots.append(Slot(row.agent, identity, occurrence, repeat, task.task_index, number))
        return Owed(slots, count, failed)

    def _natural(self, row: Wanted, task: TaskRow, repeat: int, repeats: int) -> int:
        """The number of a rollout in its group, which several tasks may be: as they come, unless the row says it."""
        if row.given_rollout is None:
            return self._numbers.next(task.task_index)
        number = row.given_rollout * repeats + repeat
        self._numbers.exceed(task.task_index, number)
        return number

    def _free_number(self, index: int, number: int, of_index: Mapping[int, Sequence[Held]]) -> int:
        """Another number where this one is another rollout's: played when repeats or the input were others."""
        if not of_index and index not in self._bumped:
            return number
        taken = {one.rollout_index for of_task in of_index.values() for one in of_task}
        if number not in taken and number not in self._bumped.get(index, ()):
            return number
        number = max(number, self._numbers.get(index))
        while number in taken or number in self._bumped[index]:
            number += 1
        self._bumped[index].add(number)
        return number


class _Counts:
    """A count for each number; a byte is enough for most, as long as they are dense."""

    def __init__(self) -> None:
        self._small = bytearray()
        self._large: dict[int, int] = {}

    def get(self, number: int) -> int:
        count = self._small[number] if number < len(self._small) else 0
        return count if count and count < _FULL else self._large.get(number, count)

    def next(self, number: int) -> int:
        """The count, which is one more from then on."""
        small = self._small
        if number < len(small) and (count := small[number]) < _FULL - 1:
            small[number] = count + 1
            return count
        count = self.get(number)
        self._set(number, count + 1)
        return count

    def take(self, number: int) -> bool:
        """One less from then on, if there is any."""
        count = self.get(number)
        if count:
            self._large.pop(number, None)
            self._set(number, count - 1)
        return count > 0

    def exceed(self, number: int, least: int) -> None:
        """The count is more than this from then on."""
        if self.get(number) <= least:
            self._set(number, least + 1)

    def _set(self, number: int, count: int) -> None:
        if number >= _DENSE:
            self._large[number] = count
            return
        if number >= len(self._small):
            self._small.extend(bytes(number + 4096 - len(self._small)))
        self._small[number] = min(count, _FULL)
        if count >= _FULL:
            self._large[number] = count


class _Numbers:
    """Numbers in the order in which they came; those that count up take the room of two."""

    def __init__(self) -> None:
        self._firsts, self._lengths = array("Q"), array("Q")

    def add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self._firsts and number == self._firsts[-1] + self._lengths[-1]:
                self._lengths[-1] += 1
            else:
                self._firsts.append(number)
                self._lengths.append(1)

    def __iter__(self) -> Iterator[int]:
        for first, length in zip(self._firsts, self._lengths, strict=True):
            yield from range(first, first + length)


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
