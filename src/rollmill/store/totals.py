"""What all rollouts of an output come to, in constant memory: kept in the index, so that a resumed run knows it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from rollmill.store.schema import Entry

_MOST_LABELS = 1000
"""How many values of one label are told apart; a field that is different in every row is no label."""


class Spread(Struct):
    """A stream of numbers."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    least: float | None = None
    most: float | None = None

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value
        if self.least is None or self.most is None:
            self.least = self.most = value
        elif value < self.least:
            self.least = value
        elif value > self.most:
            self.most = value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    @property
    def deviation(self) -> float:
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, self.squares - self.total * self.total / self.count) / (self.count - 1))


class Part(Struct):
    """What belongs to one agent, one dataset or one task name."""

    reward: Spread = field(default_factory=Spread)
    ended: int = 0
    failed: int = 0


class Totals(Struct):
    rewarded: int = 0
    unverified: int = 0
    """Ended, with verification deferred: their reward is a placeholder, and nothing here counts it."""
    numbers: dict[str, Spread] = field(default_factory=dict)
    """The reward, its parts and the metrics, by name."""
    counts: dict[str, Spread] = field(default_factory=dict)
    seconds: dict[str, Spread] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    parts: dict[str, dict[str, Part]] = field(default_factory=dict)
    """By `agent`, and by the labels that rows carry."""

    @property
    def rollouts(self) -> int:
        return self.rewarded + self.unverified

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def add(self, entry: Entry) -> None:
        """Count a slot that has ended."""
        for label, value in (("agent", entry.slot.agent), *entry.labels.items()):
            self._part(label, value, entry)
        failure = entry.failure
        if failure is not None:
            _count(self.failures, f"{failure.where}: {failure.kind}", 1)
            return
        _count(self.stops, entry.stop, 1)
        for name in _COUNTS:
            _spread(self.counts, name).add(getattr(entry, name))
        for name, spent in entry.seconds.items():
            _spread(self.seconds, name).add(spent)
        if entry.reward is None:
            self.unverified += 1
            return
        self.rewarded += 1
        _spread(self.numbers, "reward").add(entry.reward)
        self._add_named(entry.parts)
        self._add_named(entry.metrics)

    def forget_failure(self, kind: str, entry: Entry) -> None:
        """A slot that had failed has ended otherwise, as this entry says."""
        _count(self.failures, kind, -1)
        if not self.failures[kind]:
            del self.failures[kind]
        for label, value in (("agent", entry.slot.agent), *entry.labels.items()):
            part = self.parts.get(label, {}).get(value)
            if part is not None:
                part.ended, part.failed = part.ended - 1, part.failed - 1

    def _add_named(self, named: Mapping[str, float]) -> None:
        for name, value in named.items():
            _spread(self.numbers, name).add(value)

    def _part(self, label: str, value: str, entry: Entry) -> None:
        values = self.parts.setdefault(label, {})
        part = values.get(value)
        if part is None:
            if len(values) >= _MOST_LABELS:
                return
            part = values[value] = Part()
        part.ended += 1
        if entry.failure is not None:
            part.failed += 1
        elif entry.reward is not None:
            part.reward.add(entry.reward)


_COUNTS = ("turns", "tool_calls", "input_tokens", "output_tokens")


def write_totals(totals: Totals) -> bytes:
    # Unlike JSON it has numbers without end, which the square of a large reward may be.
    return msgspec.msgpack.encode(totals)


def read_totals(content: bytes | None) -> Totals:
    """Raises `msgspec.DecodeError` for what is none."""
    return msgspec.msgpack.decode(content, type=Totals) if content else Totals()


def _spread(spreads: dict[str, Spread], name: str) -> Spread:
    spread = spreads.get(name)
    if spread is None:
        spread = spreads[name] = Spread()
    return spread


def _count(counts: dict[str, int], name: str, by: int) -> None:
    counts[name] = counts.get(name, 0) + by
