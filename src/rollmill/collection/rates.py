"""Requests and tokens a minute: every call is given its time in turn, so that nothing has to run in between."""

from __future__ import annotations

import time
from collections.abc import Callable

_BURST_S = 1.0
_LEARNING = 0.1
_FIRST_GUESS = 1000.0


class Bucket:
    """Fills evenly up to a second's worth; it may be in debt, and whoever comes then is told when it is paid."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._per_s = per_minute / 60
        self._most = max(1.0, self._per_s * _BURST_S)
        self._level = self._most
        self._clock = clock
        self._at = clock()

    def take(self, amount: float) -> float:
        """Seconds until this much may be used."""
        self._fill()
        self._level -= amount
        # What is larger than the bucket goes when the bucket is full, and those after it wait the longer.
        return max(0.0, min(amount, self._most) - amount - self._level) / self._per_s

    def correct(self, amount: float) -> None:
        """So much less was used than was taken; more, if it is negative."""
        self._fill()
        self._level = min(self._most, self._level + amount)

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._at) * self._per_s)
        self._at = now


class Rates:
    """What one model may be asked for in a minute. The tokens of a call are guessed before, and corrected after it."""

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests_per_minute and Bucket(requests_per_minute, clock)
        self._tokens = tokens_per_minute and Bucket(tokens_per_minute, clock)
        self._usual = 0.0

    def reserve(self) -> tuple[float, float]:
        """Seconds until the call may go, first come first served, and the tokens that were taken for it."""
        wait, guess = 0.0, 0.0
        if self._requests:
            wait = self._requests.take(1)
        if self._tokens:
            guess = self._usual or _FIRST_GUESS
            wait = max(wait, self._tokens.take(guess))
        return wait, guess

    def used(self, guess: float, tokens: int) -> None:
        """What the call turned out to cost: nothing that anybody knows of, where it failed."""
        if self._tokens:
            self._tokens.correct(guess - tokens)
            if tokens:
                self._usual += _LEARNING * (tokens - self._usual) if self._usual else tokens

    def unsent(self, guess: float) -> None:
        """The call was given up before it went."""
        if self._requests:
            self._requests.correct(1)
        self.used(guess, 0)
