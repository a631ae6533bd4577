"""What all rollouts of an output come to, in constant memory: kept in the index, so that a resumed run knows it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter, mul

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
        self.least = value if self.least is None else min(self.least, value)
        self.most = value if self.most is None else max(self.most, value)

    def add_all(self, values: Sequence[float]) -> None:
        """The same for many at once, in a fraction of the time."""
        if not values:
            return
        least, most = min(values), max(values)
        self.count += len(values)
        self.total += sum(values)
        self.squares += sum(map(mul, values, values))
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)

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
        self.add_all((entry,))

    def add_all(self, entries: Sequence[Entry]) -> None:
        """The same for many at once, in a fraction of the time."""
        self._add_parts(entries)
        for entry in entries:
            if entry.failure is not None:
                _count(self.failures, f"{entry.failure.where}: {entry.failure.kind}", 1)
        ended = [entry for entry in entries if entry.failure is None]
        for stop, count in Counter(map(attrgetter("stop"), ended)).items():
            _count(self.stops, stop, count)
        for name, counts in zip(_COUNTS, zip(*map(_counts, ended), strict=True), strict=False):
            _add_to(self.counts, name, counts)
        _add_named(self.seconds, [entry.seconds for entry in ended])
        rewarded = [entry for entry in ended if entry.reward is not None]
        self.rewarded += len(rewarded)
        self.unverified += len(ended) - len(rewarded)
        _add_to(self.numbers, "reward", [entry.reward for entry in rewarded if entry.reward is not None])
        _add_named(self.numbers, [entry.parts for entry in rewarded])
        _add_named(self.numbers, [entry.metrics for entry in rewarded])

    def forget_failure(self, kind: str, entry: Entry) -> None:
        """A slot that had failed has ended otherwise, as this entry says."""
        _count(self.failures, kind, -1)
        if not self.failures[kind]:
            del self.failures[kind]
        for label, value in (("agent", entry.slot.agent), *entry.labels.items()):
            part = self.parts.get(label, {}).get(value)
            if part is not None:
                part.ended, part.failed = part.ended - 1, part.failed - 1

    def _add_parts(self, entries: Sequence[Entry]) -> None:
        by_label: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        for entry in entries:
            by_label["agent", entry.slot.agent].append(entry)
            for labelled in entry.labels.items():
                by_label[labelled].append(entry)
        for (label, value), some in by_label.items():
            part = self._part(label, value)
            if part is not None:
                part.ended += len(some)
                part.failed += sum(entry.failure is not None for entry in some)
                part.reward.add_all([e.reward for e in some if e.reward is not None and e.failure is None])

    def _part(self, label: str, value: str) -> Part | None:
        values = self.parts.setdefault(label, {})
        if value not in values and len(values) < _MOST_LABELS:
            values[value] = Part()
        return values.get(value)


_COUNTS = ("turns", "tool_calls", "input_tokens", "output_tokens")
_counts = attrgetter(*_COUNTS)


def write_totals(totals: Totals) -> bytes:
    # Unlike JSON it has numbers without end, which the square of a large reward may be.
    return msgspec.msgpack.encode(totals)


def read_totals(content: bytes | None) -> Totals:
    """Raises `msgspec.DecodeError` for what is none."""
    return msgspec.msgpack.decode(content, type=Totals) if content else Totals()


def _add_named(spreads: dict[str, Spread], named: Sequence[Mapping[str, float]]) -> None:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for one in named:
        for name, value in one.items():
            values[name].append(value)
    for name, found in values.items():
        _add_to(spreads, name, found)


def _add_to(spreads: dict[str, Spread], name: str, values: Sequence[float]) -> None:
    if values:
        spreads.setdefault(name, Spread()).add_all(values)


def _count(counts: dict[str, int], name: str, by: int) -> None:
    counts[name] = counts.get(name, 0) + by
