"""What a large collection will take, from a sample of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from rollmill.collection.options import Price
from rollmill.store.schema import Entry
from rollmill.store.totals import Spread

_MILLION = 1_000_000
_EDGE = 0.1
"""The share of the sample at its beginning and at its end that says nothing of the speed between."""


class Estimate(Struct, frozen=True):
    """For `slots` slots. Half-widths are of a 95 % interval, as shares."""

    slots: int
    sampled: int
    failed: int
    rollouts_per_s: float | None
    seconds: float | None
    in_flight: int
    """How many rollouts ran at once at most in the sample."""
    input_tokens: float
    output_tokens: float
    tokens_half_width: float
    bytes: float
    """Of the output on disk."""
    cost: float | None
    """None where a model has no price."""
    cost_half_width: float | None
    unpriced: tuple[str, ...] = ()


class Sample:
    """Observes the rollouts of a sample."""

    def __init__(self, prices: Mapping[str, Price], clock: Callable[[], float] = time.monotonic) -> None:
        self._prices, self._clock = prices, clock
        self._ends: list[float] = []
        self._failed = 0
        self._input, self._output, self._whole, self._cost = Spread(), Spread(), Spread(), Spread()
        self._unpriced: set[str] = set()

    def ended(self, entry: Entry) -> None:
        self._ends.append(self._clock())
        self._failed += entry.failure is not None
        self._count(entry)

    def retrying(self, entry: Entry, wait_s: float) -> None:
        """What an attempt that failed has used is not known to the bill; what it says it used is in the next one's."""

    def _count(self, entry: Entry) -> None:
        self._input.add(entry.input_tokens)
        self._output.add(entry.output_tokens)
        self._whole.add(entry.input_tokens + entry.output_tokens)
        price = self._prices.get(entry.model)
        if price is None:
            self._unpriced.add(entry.model)
        else:
            self._cost.add(_cost(entry, price))

    def estimate(self, slots: int, *, in_flight: int, output_bytes: int) -> Estimate:
        sampled = len(self._ends)
        rate = self._rate()
        cost = slots * self._cost.mean if self._cost.count and not self._unpriced else None
        return Estimate(
            slots=slots,
            sampled=sampled,
            failed=self._failed,
            rollouts_per_s=rate,
            seconds=slots / rate if rate else None,
            in_flight=in_flight,
            input_tokens=slots * self._input.mean,
            output_tokens=slots * self._output.mean,
            tokens_half_width=_half_width(self._whole),
            bytes=slots * output_bytes / max(1, sampled - self._failed),
            cost=cost,
            cost_half_width=None if cost is None else _half_width(self._cost),
            unpriced=tuple(sorted(self._unpriced)),
        )

    def _rate(self) -> float | None:
        """Between the first to end and the last: the beginning waits for the first, the end for the longest."""
        first, last = int(len(self._ends) * _EDGE), int(len(self._ends) * (1 - _EDGE)) - 1
        if last - first < 2:
            return None
        span = self._ends[last] - self._ends[first]
        return (last - first) / span if span > 0 else None


def _cost(entry: Entry, price: Price) -> float:
    cached = entry.cached_tokens if price.cached is not None else 0
    paid = (entry.input_tokens - cached) * price.input + cached * (price.cached or 0.0)
    return (paid + entry.output_tokens * price.output) / _MILLION


def _half_width(spread: Spread) -> float:
    if spread.count < 2 or not spread.mean:
        return 0.0
    return 1.96 * spread.deviation / math.sqrt(spread.count) / abs(spread.mean)
