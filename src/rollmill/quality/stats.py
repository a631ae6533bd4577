"""Statistics over groups of rollouts: the mean reward with its interval, pass@k; from sums, never from lists."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

PASS = 1.0
"""A rollout passes from this reward on."""


class Interval(Struct, frozen=True):
    """A mean and the half-width of its 95 % interval; None where one task alone says nothing of the spread."""

    mean: float
    half_width: float | None


def clustered(*, tasks: int, rollouts: int, total: float, squares: float, cross: float, counts: float) -> Interval:
    """The mean reward. Rollouts of one task are not independent, so the interval is clustered by task.

    Over all tasks: `total` sums rewards, `squares` the squares of each task's sum, `cross` each task's sum times its
    number of rollouts, `counts` the squares of those numbers.
    """
    if not rollouts:
        return Interval(math.nan, None)
    mean = total / rollouts
    if tasks < 2:
        return Interval(mean, None)
    spread = max(0.0, squares - 2 * mean * cross + mean * mean * counts)
    return Interval(mean, 1.96 * math.sqrt(spread * tasks / (tasks - 1)) / rollouts)


Histogram = Mapping[tuple[int, int], int]
"""How many tasks have so many rollouts, of which so many passed."""


def pass_at(k: int, groups: Histogram) -> tuple[float, int]:
    """The chance that at least one of k rollouts of a task passes, over the tasks that have k; and their number."""
    fitting = {group: tasks for group, tasks in groups.items() if group[0] >= k}
    tasks = sum(fitting.values())
    if not tasks:
        return math.nan, 0
    missed = math.fsum(
        many * math.comb(count - passed, k) / math.comb(count, k) for (count, passed), many in fitting.items()
    )
    return 1 - missed / tasks, tasks


def passes(groups: Histogram) -> list[tuple[int, float, int]]:
    """pass@k for k = 1 and for every power of two up to the commonest group size; none where groups are single."""
    sizes: dict[int, int] = {}
    for (count, _), tasks in groups.items():
        sizes[count] = sizes.get(count, 0) + tasks
    largest = max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0
    wanted = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < largest] + [largest]
    return [(k, *pass_at(k, groups)) for k in wanted] if largest > 1 else []
