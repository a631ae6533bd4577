"""Which rollout stands for each slot where several outputs have one, and which tasks are one group."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from rollmill.types import Slot

_TABLES = """
CREATE TABLE task (
    id INTEGER PRIMARY KEY, agent TEXT, identity BLOB,
    source INTEGER, base INTEGER, top INTEGER, UNIQUE (agent, identity)
);
CREATE TABLE offer (
    number INTEGER PRIMARY KEY, rank INTEGER, task INTEGER, occurrence INTEGER, repeat INTEGER,
    given INTEGER, run TEXT, source INTEGER, UNIQUE (task, occurrence, repeat)
);
-- Which task has which indices in the output that is being read.
CREATE TABLE claimed (task_index INTEGER, rollout_index INTEGER, task INTEGER, PRIMARY KEY (task_index, rollout_index))
    WITHOUT ROWID;
"""


class Rank(IntEnum):
    """The higher takes the place of the lower; of equals, the first stays."""

    FAILED = 0
    UNVERIFIED = 1
    """Its reward is a placeholder."""
    REWARDED = 2


class Offer(NamedTuple):
    """What an output has for a slot."""

    slot: Slot
    run: str
    rank: Rank


class Lost(NamedTuple):
    """An offer that another one kept out, or put out."""

    number: int
    rank: Rank


class Chosen(NamedTuple):
    """An offer that stands, and the slot it has among all."""

    number: int
    slot: Slot


class Choice:
    """Offers of one source after the other, numbered as they come; then those that stand, in that order.

    What is said of each offer lies in a scratch database; a few bytes for each task are all that stays in memory.
    """

    def __init__(self, scratch: Path, *, occurrences: bool) -> None:
        """With `occurrences`, what different sources have for one slot are further occurrences of its task."""
        self._occurrences = occurrences
        self._source = 0
        self._put_together = False
        self._groups = _Groups()
        self._connection = sqlite3.connect(scratch, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA cache_size = -32000")
        self._connection.executescript(_TABLES)
        if occurrences:
            self._connection.execute("CREATE INDEX same_rollout ON offer (task, given, repeat, run)")
        self._connection.execute("BEGIN")

    def close(self) -> None:
        self._connection.close()

    def offer(self, number: int, offer: Offer) -> Lost | None:
        """Consider a rollout; what stays outside because of it, or instead of it."""
        task, base = self._task(offer.slot)
        self._claim(offer.slot, task)
        held = self._held(task, base, offer)
        if held is None:
            self._stand(number, offer, task, base + offer.slot.occurrence)
            return None
        held_number, held_rank, occurrence = held
        # Of several failures of one slot the last is its state.
        if offer.rank > held_rank or offer.rank is Rank.FAILED is held_rank:
            self._connection.execute("DELETE FROM offer WHERE number = ?", (held_number,))
            self._stand(number, offer, task, occurrence)
            return Lost(held_number, held_rank)
        return Lost(number, offer.rank)

    def end_source(self) -> None:
        """What comes next is another output's."""
        if not self._put_together:
            self._join_groups()
        self._connection.execute("DELETE FROM claimed")
        self._put_together = False
        self._source += 1

    def chosen(self) -> Iterator[Chosen]:
        """Groups are numbered as they appear, and so are the rollouts of each."""
        numbers = _Numbers(len(self._groups))
        query = (
            "SELECT number, task, agent, identity, occurrence, repeat "
            "FROM offer JOIN task ON task.id = offer.task ORDER BY number"
        )
        for number, task, agent, identity, occurrence, repeat in self._connection.execute(query):
            index, rollout = numbers.next(self._groups.of(task))
            yield Chosen(number, Slot(agent, identity.hex(), occurrence, repeat, index, rollout))

    def _task(self, slot: Slot) -> tuple[int, int]:
        """The number of a task, and the first occurrence of it that is this source's."""
        key = (slot.agent, bytes.fromhex(slot.task))
        found = self._connection.execute(
            "SELECT id, source, base, top FROM task WHERE agent = ? AND identity = ?", key
        ).fetchone()
        if found is None:
            task = self._groups.add()
            self._connection.execute("INSERT INTO task VALUES (?, ?, ?, ?, 0, 0)", (task, *key, self._source))
            return task, 0
        task, source, base, top = found
        return task, top if self._occurrences and source != self._source else base

    def _held(self, task: int, base: int, offer: Offer) -> tuple[int, Rank, int] | None:
        """The number, the rank and the occurrence of what stands where this offer would."""
        slot = offer.slot
        found = self._connection.execute(
            "SELECT number, rank, occurrence FROM offer WHERE task = ? AND occurrence = ? AND repeat = ?",
            (task, base + slot.occurrence, slot.repeat),
        ).fetchone()
        if found is None and self._occurrences:
            # A run plays a slot once: this is a copy of a rollout, not another one.
            found = self._connection.execute(
                "SELECT number, rank, occurrence FROM offer WHERE task = ? AND given = ? AND repeat = ? AND run = ?",
                (task, slot.occurrence, slot.repeat, offer.run),
            ).fetchone()
        return found and (found[0], Rank(found[1]), found[2])

    def _stand(self, number: int, offer: Offer, task: int, occurrence: int) -> None:
        slot = offer.slot
        self._connection.execute(
            "INSERT INTO offer VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (number, offer.rank, task, occurrence, slot.repeat, slot.occurrence, offer.run, self._source),
        )
        if self._occurrences:
            self._connection.execute(
                "UPDATE task SET source = ?, base = ?, top = max(top, ?) WHERE id = ?",
                (self._source, occurrence - slot.occurrence, occurrence + 1, task),
            )

    # Groups.

    def _claim(self, slot: Slot, task: int) -> None:
        key = (slot.task_index, slot.rollout_index)
        try:
            self._connection.execute("INSERT INTO claimed VALUES (?, ?, ?)", (*key, task))
        except sqlite3.IntegrityError:
            owner = self._connection.execute(
                "SELECT task FROM claimed WHERE task_index = ? AND rollout_index = ?", key
            ).fetchone()
            # No run gives the same two numbers to two tasks: this is the `cat` of outputs that each count from 0.
            self._put_together = self._put_together or owner != (task,)

    def _join_groups(self) -> None:
        """Tasks whose rows brought one index to one output are a group there, and stay one."""
        shared = self._connection.execute(
            "SELECT DISTINCT task_index, task FROM claimed WHERE task_index IN "
            "(SELECT task_index FROM claimed GROUP BY task_index HAVING min(task) != max(task)) ORDER BY task_index"
        )
        last_index, last_task = None, 0
        for index, task in shared:
            if index == last_index:
                self._groups.join(last_task, task)
            last_index, last_task = index, task


class _Groups:
    """Sets of tasks, each named by one of them."""

    def __init__(self) -> None:
        self._parents = array("I")

    def __len__(self) -> int:
        """How many tasks they hold."""
        return len(self._parents)

    def add(self) -> int:
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def of(self, task: int) -> int:
        while (parent := self._parents[task]) != task:
            self._parents[task] = task = self._parents[parent]
        return task

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.of(one), self.of(other)))
        self._parents[second] = first


class _Numbers:
    """A number for each group in the order in which they appear, and one for each of its rollouts."""

    def __init__(self, tasks: int) -> None:
        self._numbers = array("q", [-1]) * tasks
        self._counts = array("I")

    def next(self, group: int) -> tuple[int, int]:
        number = self._numbers[group]
        if number < 0:
            number = self._numbers[group] = len(self._counts)
            self._counts.append(0)
        count = self._counts[number]
        self._counts[number] = count + 1
        return number, count
