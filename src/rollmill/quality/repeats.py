"""What it says that tasks were played more than once: pass@k, and averages over runs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rollmill.quality.stats import PASS, Histogram, passes

Rewards = Iterable[tuple[int, float]]
"""Task index and reward of every rollout with one; those of a task follow each other as they were planned."""


def sizes(rewards: Rewards) -> Counter[tuple[int, int]]:
    """How many tasks have so many rollouts, of which so many passed."""
    return Counter((len(group), sum(reward >= PASS for reward in group)) for group in _by_task(rewards))


def pass_metrics(sizes: Histogram, rewards: Rewards) -> dict[str, float]:
    """From 0 to 100, as NeMo Gym names them. Nothing where tasks are single.

    The average of k is over the tasks that have k rollouts with a reward, of which the first k count; the first of
    every task are one run, the second another.
    """
    chances = passes(sizes)
    found = {f"pass@{k}/reward": 100 * value for k, value, _ in chances}
    runs = [_Runs(k) for k, _, _ in chances if k > 1]
    for group in _by_task(rewards if runs else ()):
        for one in runs:
            one.add(group)
    for one in runs:
        found |= one.metrics()
    return found


def _by_task(rewards: Rewards) -> Iterator[list[float]]:
    for _, of_task in groupby(rewards, key=lambda one: one[0]):
        yield [reward for _, reward in of_task]


class _Runs:
    """The first k rollouts of every task, seen as k runs over all of them."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._tasks = 0
        self._totals = [0.0] * k
        self._deviations = 0.0

    def add(self, rewards: Sequence[float]) -> None:
        if len(rewards) < self._k:
            return
        self._tasks += 1
        for run, reward in enumerate(rewards[: self._k]):
            self._totals[run] += reward
        self._deviations += statistics.stdev(rewards[: self._k])

    def metrics(self) -> dict[str, float]:
        if not self._tasks:
            return {}
        means = [100 * total / self._tasks for total in self._totals]
        deviation = statistics.stdev(means)
        name = f"pass@1[avg-of-{self._k}]/reward"
        return {
            name: statistics.fmean(means),
            f"{name}/std_dev_across_runs": deviation,
            f"{name}/std_err_across_runs": deviation / math.sqrt(self._k),
            f"{name}/avg_sample_std_dev": 100 * self._deviations / self._tasks,
        }
