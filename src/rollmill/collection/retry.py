"""When a failed rollout is tried again: bounded attempts, exponential back-off with jitter, Retry-After honoured."""

from __future__ import annotations

import random

from msgspec import Struct

from rollmill.types import Failure


class RetryPolicy(Struct, frozen=True):
    attempts: int = 3
    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = 3600.0
    """A server that asks for more than this is not waited for."""

    def wait(self, failure: Failure, attempt: int) -> float | None:
        """Seconds to wait before the next attempt; None if there is none."""
        if not failure.retryable or attempt >= self.attempts or self.asks_too_much(failure):
            return None
        half = min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 64)) / 2
        # Half of it is chance, also on top of what the server asked for: what failed together comes back spread out.
        return max(failure.retry_after_s or 0.0, half) + half * random.random()

    def asks_too_much(self, failure: Failure) -> bool:
        return (failure.retry_after_s or 0.0) > self.longest_asked_s
