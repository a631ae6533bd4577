"""The numbers of many rollouts, some hundred bytes for each, whatever their rows hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from msgspec import Struct

from rollmill.quality.groups import Seen
from rollmill.quality.repeats import pass_metrics, sizes
from rollmill.quality.spread import Numbers, named, reward_first, spread_of


class Counted(Struct, frozen=True):
    """A rollout as far as it is counted."""

    named: Mapping[str, float] = {}
    """The reward, its parts and the metrics."""
    counts: Mapping[str, float] = {}
    """What every rollout has: turns, tokens. Where any rollout has a metric of that name, the name is the metric's."""
    verified: bool = True
    """If not, its reward is a placeholder, and none of its numbers counts."""


class Group(NamedTuple):
    """The rollouts of one task."""

    task_index: int
    seen: list[Seen]
    unverified: int
    highest: int
    """The highest of their indices."""


class Tally:
    def __init__(self) -> None:
        self._tasks, self._rollouts = array("q"), array("q")
        self._verified = bytearray()
        self._names: dict[tuple[str, bool], int] = {}
        # The numbers of a rollout stand from its start on to the next one's: a name and a value each.
        self._starts = array("Q", [0])
        self._keys, self._values = array("I"), array("d")

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def tasks(self) -> int:
        """How many they are of."""
        return len(set(self._tasks))

    def add(self, task_index: int, rollout_index: int, one: Counted) -> None:
        self._tasks.append(task_index)
        self._rollouts.append(rollout_index)
        self._verified.append(one.verified)
        if one.verified:
            self._put(one.counts, own=False)
            self._put(one.named, own=True)
        self._starts.append(len(self._keys))

    def metrics(self) -> dict[str, float]:
        """Over all rollouts."""
        return named(self._numbers()) | pass_metrics(sizes(self._rewards()), self._rewards())

    def groups(self) -> Iterator[Group]:
        """In the order of the tasks, and in each of the rollouts."""
        names = [name for name, _ in self._names]
        for index, places in groupby(self._ordered(), key=self._tasks.__getitem__):
            of_task = list(places)
            seen = [Seen(self._rollouts[place], self._row(place, names)) for place in of_task if self._verified[place]]
            yield Group(index, seen, len(of_task) - len(seen), self._rollouts[of_task[-1]])

    def _put(self, numbers: Mapping[str, float], *, own: bool) -> None:
        for name, value in numbers.items():
            self._keys.append(self._names.setdefault((name, own), len(self._names)))
            self._values.append(value)

    def _ordered(self) -> list[int]:
        return sorted(range(len(self)), key=lambda place: (self._tasks[place], self._rollouts[place]))

    def _row(self, place: int, names: list[str]) -> dict[str, float]:
        numbers = range(self._starts[place], self._starts[place + 1])
        return {names[self._keys[number]]: self._values[number] for number in numbers}

    def _numbers(self) -> Iterator[tuple[str, Numbers]]:
        columns = [array("d") for _ in self._names]
        for key, value in zip(self._keys, self._values, strict=True):
            columns[key].append(value)
        owned = {name for name, own in self._names if own}
        found = {
            name: column for (name, own), column in zip(self._names, columns, strict=True) if own or name not in owned
        }
        for name in sorted(found, key=reward_first):
            yield name, spread_of(found[name])

    def _rewards(self) -> Iterator[tuple[int, float]]:
        reward = self._names.get(("reward", True))
        for place in self._ordered():
            for number in range(self._starts[place], self._starts[place + 1]):
                if self._keys[number] == reward:
                    yield self._tasks[place], self._values[number]
