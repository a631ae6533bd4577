"""Rollouts of any origin from several files, one after the other, as those of one file.

A row keeps its bytes, unless an earlier file has a rollout with its indices: files that were made each by itself all
count from 0, and what shares an index is a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Raw

from rollmill.data.rollouts import Row, read_rollouts
from rollmill.types import encode


class Concatenation:
    def __init__(self, files: Iterable[Path]) -> None:
        self._files = files
        self._indices = _Indices()
        self.moved = 0
        """How many rows had to get other indices."""

    def __iter__(self) -> Iterator[Row]:
        for path in self._files:
            self._indices.begin_file()
            for row in read_rollouts(path):
                place = self._indices.of(row)
                if place == (row.task_index, row.rollout_index):
                    yield row
                else:
                    self.moved += row.indexed
                    yield _moved(row, *place)


class _Indices:
    """What different files have under one index is one task only if the same agent was asked the same."""

    def __init__(self) -> None:
        self._tasks: dict[int, bytes] = {}
        self._others: dict[tuple[int, bytes], int] = {}
        self._free = 0
        self._earlier: set[tuple[int, int]] = set()
        self._here: set[tuple[int, int]] = set()
        self._known: dict[int, int] = {}

    def begin_file(self) -> None:
        self._earlier |= self._here
        self._here, self._known = set(), {}

    def of(self, row: Row) -> tuple[int, int]:
        index = self._known.get(row.task_index)
        if index is None:
            index = self._known[row.task_index] = self._task(row)
        place = index, row.rollout_index
        if place in self._earlier:
            place = self._next_rollout(index, row.rollout_index)
        self._here.add(place)
        return place

    def _task(self, row: Row) -> int:
        asked = row.agent.encode() + b"/" + (row.asked or b"")
        index = row.task_index
        if self._tasks.setdefault(index, asked) == asked:
            return index
        if (index, asked) not in self._others:
            self._free = next(free for free in itertools.count(self._free) if free not in self._tasks)
            self._tasks[self._free] = asked
            self._others[index, asked] = self._free
        return self._others[index, asked]

    def _next_rollout(self, index: int, rollout: int) -> tuple[int, int]:
        places = ((index, number) for number in itertools.count(rollout + 1))
        return next(place for place in places if place not in self._earlier and place not in self._here)


def _moved(row: Row, task_index: int, rollout_index: int) -> Row:
    """The row with other indices, if it has any; every other field keeps its bytes."""
    content = row.content
    if row.indexed:
        indices = {"_ng_task_index": Raw(encode(task_index)), "_ng_rollout_index": Raw(encode(rollout_index))}
        content = encode({**row.fields, **indices})
    return row._replace(content=content, task_index=task_index, rollout_index=rollout_index)
