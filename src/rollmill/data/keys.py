"""Which rollouts there are, and which there should be: their indices, in a few bytes each."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rollmill.errors import ConfigError


class Key(NamedTuple):
    task_index: int
    rollout_index: int
    line: int

    @property
    def place(self) -> tuple[int, int]:
        return self.task_index, self.rollout_index

    def __str__(self) -> str:
        return f"rollout {self.rollout_index} of task {self.task_index}"


class Keys:
    """Those that a file has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tasks, self._rollouts, self._lines = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Key]:
        """In their order."""
        order = sorted(range(len(self)), key=lambda at: (self._tasks[at], self._rollouts[at], self._lines[at]))
        return (Key(self._tasks[at], self._rollouts[at], self._lines[at]) for at in order)

    def add(self, task_index: int, rollout_index: int, line: int) -> None:
        self._tasks.append(task_index)
        self._rollouts.append(rollout_index)
        self._lines.append(line)

    def by_task(self) -> Counter[int]:
        """How many there are of each task."""
        return Counter(self._tasks)

    def refuse_doubles(self) -> None:
        for one, other in itertools.pairwise(self):
            if one.place == other.place:
                raise ConfigError(f"{self.path}: lines {one.line} and {other.line} are both {one}; keep one of them")


def refuse_difference(have: Keys, want: Keys, *, partial: bool) -> None:
    """Raise `ConfigError` for what nobody asked for, and unless `partial` for what is missing."""
    more, missing = _differences(have, want)
    if more:
        raise ConfigError(
            f"{have.path}: {len(more):,} of its rollouts are not asked for by {want.path}, the first is {more[0]} in "
            f"line {more[0].line}; these two files do not belong together"
        )
    if missing and not partial:
        raise ConfigError(
            f"{have.path}: {len(missing):,} of {len(want):,} rollouts are missing that {want.path} asks for, the first "
            f"is {missing[0]}; collect them, or take what there is with +allow_partial_rollouts=true"
        )


def _differences(have: Keys, want: Keys) -> tuple[list[Key], list[Key]]:
    """What only the one has, and what only the other."""
    more, missing = [], []
    ours, theirs = iter(have), iter(want)
    one, other = next(ours, None), next(theirs, None)
    while one or other:
        if other is None or (one is not None and one.place < other.place):
            assert one is not None
            more.append(one)
            one = next(ours, None)
        elif one is None or other.place < one.place:
            missing.append(other)
            other = next(theirs, None)
        else:
            one, other = next(ours, None), next(theirs, None)
    return more, missing
