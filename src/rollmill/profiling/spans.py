"""Wall time by stage, in constant memory: a histogram for each, whose buckets grow with the time they hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

_STEP = math.log(1.1)
"""Each bucket ends a tenth above the one before: its middle is at most 5 % off whatever is in it."""
_LEAST_S = 1e-6
_MOST_NAMES = 200
"""How many parts of one stage are told apart: a model calls tools that nobody has."""
OTHERS = "(others)"
HELD = "held"
"""A stage of its own: how long tools, rewards and the setup held the event loop, so that nothing else went on."""
FOR_A_PROCESS = "(waiting for a process)"
"""The part of verification in which a reward that computes waits for one."""


class Span(Struct):
    """How long something took, each time that it did."""

    count: int = 0
    total_s: float = 0.0
    most_s: float = 0.0
    buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.most_s = max(self.most_s, seconds)
        bucket = math.floor(math.log(max(seconds, _LEAST_S)) / _STEP)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def __add__(self, other: Span) -> Span:
        buckets = dict(self.buckets)
        for bucket, count in other.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        return Span(self.count + other.count, self.total_s + other.total_s, max(self.most_s, other.most_s), buckets)

    def quantile(self, share: float) -> float:
        """The time that such a share of them did not exceed, at most 5 % off from a microsecond on."""
        rank = max(1, math.ceil(share * self.count))
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return min(self.most_s, math.exp((bucket + 0.5) * _STEP))
        return 0.0


Stages = dict[str, dict[str, Span]]
"""By stage, and in it by name; the stage as a whole has none."""


class Spans:
    """Hears how long the stages of all rollouts took."""

    def __init__(self) -> None:
        self.stages: Stages = {}

    def add(self, stage: str, seconds: float, name: str = "") -> None:
        """`name` is a part of the stage: one tool of all, one reward, one reason to wait."""
        names = self.stages.setdefault(stage, {})
        span = names.get(name)
        if span is None:
            span = names.setdefault(name if len(names) < _MOST_NAMES else OTHERS, Span())
        span.add(seconds)


def together(one: Stages, other: Stages) -> Stages:
    """Those of two processes."""
    return {stage: _joined(one.get(stage, {}), other.get(stage, {})) for stage in one | other}


def whole(names: Mapping[str, Span]) -> Span:
    """All of a stage: as it was measured, or else its parts together."""
    return names[""] if "" in names else sum(names.values(), Span())


def _joined(one: dict[str, Span], other: dict[str, Span]) -> dict[str, Span]:
    return {name: one.get(name, Span()) + other.get(name, Span()) for name in one | other}
