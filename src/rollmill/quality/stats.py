"""Statistics in one pass: means of every number, the mean reward with its interval, pass@k."""

from __future__ import annotations

import math
from collections import Counter

from msgspec import Struct

PASS = 1.0
"""A rollout passes from this reward on."""


class Running:
    """Count, mean, spread and range of a stream of numbers (Welford)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0
        self.least = math.inf
        self.most = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    @property
    def deviation(self) -> float:
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0


class Group:
    """The rollouts of one task, counted."""

    __slots__ = ("count", "passed", "total")

    def __init__(self) -> None:
        self.count, self.passed, self.total = 0, 0, 0.0


class Interval(Struct, frozen=True):
    """A mean and the half-width of its 95 % interval; None where one task alone says nothing of the spread."""

    mean: float
    half_width: float | None


class Groups:
    """Rewards by task: rollouts of one task are not independent, so intervals are clustered by task."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def add(self, task: str, reward: float) -> None:
        group = self._groups.setdefault(task, Group())
        group.count += 1
        group.total += reward
        group.passed += reward >= PASS

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def sizes(self) -> Counter[int]:
        """How many tasks have how many rollouts."""
        return Counter(group.count for group in self._groups.values())

    def interval(self) -> Interval:
        rollouts = sum(group.count for group in self._groups.values())
        if not rollouts:
            return Interval(math.nan, None)
        mean = math.fsum(group.total for group in self._groups.values()) / rollouts
        tasks = len(self._groups)
        if tasks < 2:
            return Interval(mean, None)
        squares = math.fsum((group.total - mean * group.count) ** 2 for group in self._groups.values())
        error = math.sqrt(squares * tasks / (tasks - 1)) / rollouts
        return Interval(mean, 1.96 * error)

    def pass_at(self, k: int) -> tuple[float, int]:
        """The chance that at least one of k rollouts of a task passes, over the tasks that have k; and their number."""
        chances = [
            1 - math.comb(group.count - group.passed, k) / math.comb(group.count, k)
            for group in self._groups.values()
            if group.count >= k
        ]
        return (math.fsum(chances) / len(chances) if chances else math.nan), len(chances)
