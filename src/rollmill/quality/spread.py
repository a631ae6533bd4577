"""How the values of one name are spread, from the values in order: whoever has them, the numbers are the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from msgspec import Struct


class Numbers(Struct, frozen=True):
    count: int
    mean: float
    least: float
    most: float
    median: float
    deviation: float
    """Of the sample; 0 for a single value."""


def spread(count: int, histogram: Iterable[tuple[float, int]]) -> Numbers:
    """From the values in order, each with how often it is there."""
    least = most = mean = squares = 0.0
    middle: list[float] = []
    seen = 0
    for value, many in histogram:
        least, most = (value if not seen else least), value
        # The values at these places of all, counted from 0, are the middle ones.
        middle += [value for place in ((count - 1) // 2, count // 2) if seen <= place < seen + many]
        seen += many
        away = value - mean
        # Of values that are all the same, the mean is that value to the last bit.
        mean += away * (many / seen)
        squares += away * (value - mean) * many
    # Rounding may leave a little less than nothing.
    deviation = math.sqrt(max(0.0, squares) / (count - 1)) if count > 1 else 0.0
    return Numbers(count, mean, least, most, sum(middle) / 2, deviation)


def spread_of(values: Iterable[float]) -> Numbers:
    ordered = sorted(values)
    return spread(len(ordered), ((value, sum(1 for _ in same)) for value, same in groupby(ordered)))


def named(numbers: Iterable[tuple[str, Numbers]]) -> dict[str, float]:
    """As NeMo Gym names them: `mean/reward` and so on."""
    return {
        f"{statistic}/{name}": value
        for name, one in numbers
        for statistic, value in (
            ("mean", one.mean),
            ("max", one.most),
            ("min", one.least),
            ("median", one.median),
            ("std", one.deviation),
        )
    }


def by_name(numbers: Iterable[Mapping[str, float]]) -> Iterator[tuple[str, Numbers]]:
    """Over rollouts with these numbers each: the reward first, then the others by name."""
    values: dict[str, list[float]] = {}
    for one in numbers:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    for name in sorted(values, key=reward_first):
        yield name, spread_of(values[name])


def reward_first(name: str) -> tuple[bool, str]:
    """Sorts names."""
    return name != "reward", name
