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
        asked = failure.retry_after_s or 0.0
        if not failure.retryable or attempt >= self.attempts or asked > self.longest_asked_s:
            return None
        backoff: float = min(self.longest_s, self.first_s * 2 ** (attempt - 1))
        # Half of it is chance: rollouts that failed together do not come back together.
        return max(asked, backoff * random.uniform(0.5, 1.0))
