"""A limit that finds out how many calls a model serves well.

It doubles every round trip until something says that it is too much, then goes on in small steps. A model that refuses
is answered with a cut. One that lets calls queue is recognised by latency: where a limit half as high again brings no
more answers a second, the limit goes back to what would have brought them without the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from rollmill.collection.throttle import Queue, Sent
from rollmill.types import Failure

CUT = 0.7
COOL_S = 1.0
_CROWDED = ("rate_limit", "overload", "timeout")
_STRAY = 0.15
"""Up to this share of calls may fail with faults that can have other reasons than too many calls."""
_ENOUGH = 20
"""How many calls must have ended before their shares and means say anything."""
_SAMPLE = 64
"""And before a mean of latencies does, which differ much from call to call."""
_STEP = 1.5
_SETTLED_ROUNDS = 20
_SETTLED_S, _LONGEST_SETTLED_S = 30.0, 300.0
_TOLERATE_S = 60.0


class Window:
    """What happened to the calls of about one round trip."""

    def __init__(self, at: float, limit: float) -> None:
        self.at, self.limit = at, limit
        self.answered = self.faults = 0
        self.own_answered = self.own_faults = self.saturated = 0
        """Of those that were sent in it too; and how many of the answered the limit had held back."""
        self.latency_sum = 0.0

    def answer(self, call: Sent, now: float) -> None:
        if now < self.at:
            return
        self.answered += 1
        if call.at >= self.at:
            self.own_answered += 1
            self.saturated += call.saturated
            self.latency_sum += now - call.at

    def fault(self, call: Sent, now: float) -> None:
        if now >= self.at:
            self.faults += 1
            self.own_faults += call.at >= self.at

    @property
    def ended(self) -> int:
        return self.answered + self.faults

    @property
    def fault_share(self) -> float:
        return self.faults / max(1, self.ended)

    def full(self, now: float, enough: int) -> bool:
        """A round trip's worth of calls were sent in it, and have ended."""
        return self.own_answered + self.own_faults >= max(self.limit, enough) and now - self.at >= COOL_S / 5

    def measured(self, now: float) -> Measured:
        latency_s = self.latency_sum / max(1, self.own_answered)
        return Measured(self.limit, self.answered / (now - self.at), latency_s, self.fault_share)


class Measured(Struct, frozen=True):
    """A limit, and what it brought."""

    limit: float
    answers_per_s: float
    latency_s: float
    fault_share: float


class Adaptive(Queue):
    """Slow start, growth only by evidence, multiplicative decrease. Driven by its calls alone: it has no timers."""

    def __init__(
        self, start: int = 16, *, least: int = 1, most: int = 4096, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(min(max(start, least), most))
        self._least, self._most = least, most
        self._clock = clock
        self._starting = True
        self._round_s = 0.0
        self._cool_until = self._cut_at = float("-inf")
        self._carried = 0.0
        """The limit of the last cut: soon back to just below it, and then carefully."""
        self._window = Window(clock(), self._limit)
        self._base: Measured | None = None
        """The last limit that paid, and the one before it."""
        self._before_base: Measured | None = None
        self._last: Measured | None = None
        self._settled_until = float("-inf")
        self._trying = False
        self._before_cut: Measured | None = None
        self._tolerated, self._tolerated_until = 0.0, float("-inf")
        self.cuts = 0

    def sent(self, *, saturated: bool) -> Sent:
        return Sent(self._clock(), saturated)

    def succeeded(self, call: Sent) -> None:
        now = self._clock()
        latency = now - call.at
        self._round_s += (latency - self._round_s) / 8 if self._round_s else latency
        self._window.answer(call, now)
        if call.saturated and call.at >= self._cool_until:
            self._grow(now)
        self._look(now)

    def failed(self, call: Sent, failure: Failure) -> None:
        if failure.kind not in _CROWDED:
            return
        now = self._clock()
        self._window.fault(call, now)
        self._look(now)
        # What was sent before the last cut says nothing of the limit since.
        if call.at >= self._cut_at and now >= self._cool_until and self._too_much(failure, now):
            self._cut(now)

    def _grow(self, now: float) -> None:
        window = self._window
        if now < self._settled_until or self._limit >= window.limit + max(window.limit, _ENOUGH):
            # What the last round brought must be seen first.
            return
        step = 1.0 if self._starting else self._small_step() / self._limit
        self._limit = min(self._limit + step, float(self._most))

    def _small_step(self) -> float:
        """For a round trip: soon back to what was carried, slowly around it, faster beyond."""
        if self._limit > 1.05 * self._carried:
            return max(1.0, self._limit / 64)
        return max(1 / 6, self._limit / 768, (0.95 * self._carried - self._limit) / 2)

    def _too_much(self, failure: Failure, now: float) -> bool:
        """A refusal for its rate is plain speech; other faults must be many before they are taken for overload."""
        if self._trying:
            # The last cut must first show what it brought.
            return False
        tolerated = self._tolerated if now < self._tolerated_until else 0.0
        if failure.kind == "rate_limit" and not tolerated:
            return True
        window = self._window
        enough = _SAMPLE if tolerated else min(_ENOUGH, max(5, window.limit))
        return window.ended >= enough and window.fault_share > max(_STRAY, tolerated)

    def _cut(self, now: float) -> None:
        window = self._window
        self._before_cut = window.measured(now) if window.own_answered >= _ENOUGH else self._last
        self._carried = self._limit
        self._set(self._limit * CUT)
        self._starting = False
        self._trying = True
        self._cut_at = now
        self._cool_until = now + max(COOL_S, self._round_s)
        self._settled_until = now
        self._restart(self._cool_until)
        if self._base is not None and self._limit < self._base.limit:
            self._base = self._before_base = None
        self.cuts += 1

    def _look(self, now: float) -> None:
        """At the end of a round: did the limit pay?"""
        window = self._window
        if not window.full(now, _ENOUGH if self._trying else _SAMPLE):
            return
        before, seen = self._last, window.measured(now)
        if self._trying:
            before, self._before_cut, self._trying = self._before_cut, None, False
            if before is not None:
                self._judge_cut(before, seen, now)
        elif 2 * window.saturated >= window.own_answered > 0:
            self._judge_growth(seen, now)
        self._last = seen
        self._restart(now)

    def _judge_cut(self, before: Measured, seen: Measured, now: float) -> None:
        """Faults that stay as many while answers become fewer have another reason: the cut is taken back."""
        kept = seen.limit / before.limit
        fewer = seen.answers_per_s < before.answers_per_s * (1 + kept) / 2
        if kept < 0.95 and fewer and seen.fault_share > before.fault_share / 2 > 0:
            self._tolerated = min(0.5, 1.5 * max(seen.fault_share, before.fault_share))
            self._tolerated_until = now + _TOLERATE_S
            self._set(before.limit)

    def _judge_growth(self, seen: Measured, now: float) -> None:
        base = self._base
        if base is None or seen.limit <= base.limit:
            self._base = seen
        elif seen.limit >= _STEP * base.limit:
            # Half of what was added must come out as answers: twice as many calls may take a third longer.
            growth = seen.limit / base.limit
            if seen.latency_s <= base.latency_s * 2 * growth / (1 + growth):
                self._before_base, self._base = base, seen
                self._starting = self._limit > 1.4 * self._carried
            else:
                self._settle(base, seen, now)

    def _settle(self, base: Measured, seen: Measured, now: float) -> None:
        # So many calls in flight bring these answers at the latency that there was before (Little's law). At the last
        # limit that paid some may have queued already, so that the one before it is asked too.
        before = self._before_base or base
        enough = seen.answers_per_s * (before.latency_s + base.latency_s) / 2
        self._set(min(seen.limit, max(before.limit, enough)))
        self._starting = False
        self._carried = 0.0
        self._base = self._before_base = None
        self._settled_until = now + min(_LONGEST_SETTLED_S, max(_SETTLED_S, _SETTLED_ROUNDS * base.latency_s))

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, float(self._least)), float(self._most))

    def _restart(self, at: float) -> None:
        self._window = Window(at, self._limit)
