"""Model calls that fail are made again where they failed: a conversation of many turns is not begun anew for a 429."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec

from rollmill.collection.retry import RetryPolicy
from rollmill.errors import CallerError, ConfigError, ModelError, OutageError, RolloutError
from rollmill.model import Conversation, Model
from rollmill.types import Failure, Reply

REFUSALS = 3
"""How many refusals of the key or the model's name, with no answer between, stop a run."""
WRONG_REQUESTS = 20
"""How many requests that the model calls wrong stop a run, if it never answered one."""
_SUSPECT = 8
_RESERVE = 32
_PROBE_S = 1.0
_LONGEST_PROBE_S = 15.0


class Calls:
    """What all models of one worker share: when to try again, how much of it, and when everything fails."""

    def __init__(
        self, retry: RetryPolicy = RetryPolicy(), *, outage_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._retry = retry
        self._outage_s = outage_s
        self._clock = clock
        self._closing = asyncio.Event()
        self._drained = False
        self._fault: CallerError | OutageError | None = None
        self._answered = False
        self._failures_in_a_row = self._refusals = self._wrong = 0
        self._failing_since = 0.0
        # Every answer pays for one retry, so that retries never outnumber answers by more than the reserve.
        self._budget = float(_RESERVE)
        self._probe = asyncio.Lock()
        self.retries: Counter[str] = Counter()
        self.waited_s = 0.0

    def drain(self) -> None:
        self._drained = True
        self._closing.set()

    def check(self) -> None:
        """Raise what has stopped the run."""
        if self._fault is not None:
            raise self._fault

    def answered(self) -> None:
        self._answered = True
        self._failures_in_a_row = self._refusals = self._wrong = 0
        self._budget = min(self._budget + 1, 4 * _RESERVE)

    async def failed(self, error: ModelError, attempt: int) -> int:
        """Wait until the call may be made again, and say which attempt that is. Raises where there is no other."""
        failure = error.failure
        self._heed(failure)
        self.check()
        wait = self._retry.wait(failure, self._counted(failure, attempt))
        if wait is None:
            # It was tried as often as makes sense; to play the whole rollout again would begin anew.
            raise RolloutError(msgspec.structs.replace(failure, retryable=False)) from error
        self.retries[failure.kind] += 1
        began = self._clock()
        await self._pause(wait)
        await self._pay()
        self.waited_s += self._clock() - began
        return attempt + 1

    def _counted(self, failure: Failure, attempt: int) -> int:
        """A limit of rate says nothing against the request, and neither does a server that is away from all."""
        if failure.kind == "rate_limit":
            return min(attempt, self._retry.attempts - 1)
        return min(attempt, self._retry.attempts - 1) if self._suspects and failure.retryable else attempt

    @property
    def _suspects(self) -> bool:
        return self._failures_in_a_row >= _SUSPECT

    def _heed(self, failure: Failure) -> None:
        """One fault may be a stray; many in a row, and no answer between, are everybody's."""
        if not self._failures_in_a_row:
            self._failing_since = self._clock()
        self._failures_in_a_row += 1
        if failure.kind == "denied":
            self._refusals += 1
            if self._refusals >= REFUSALS:
                self._trip(ConfigError(f"the model refuses every request: {failure.detail}"))
        elif failure.kind == "caller":
            self._wrong += 1
            if self._wrong >= WRONG_REQUESTS and not self._answered:
                self._trip(ConfigError(f"the model calls every request wrong: {failure.detail}"))
        elif self._suspects and self._clock() - self._failing_since > self._outage_s:
            self._trip(
                OutageError(
                    f"no model call has succeeded for {self._outage_s:.0f} s: {failure.detail}; the same command goes "
                    "on when it does (outage_s says how long to wait)"
                )
            )

    def _trip(self, fault: CallerError | OutageError) -> None:
        self._fault = self._fault or fault
        self._closing.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        self.check()
        if self._drained:
            raise RolloutError(Failure("infrastructure", "drained", "the run was stopped before the next attempt"))

    async def _pay(self) -> None:
        """Wait until the budget has a retry for us; where nothing succeeds, one call at a time goes and sees."""
        if self._budget < 1:
            async with self._probe:
                longer = _PROBE_S
                while self._budget < 1 and longer < _LONGEST_PROBE_S:
                    await self._pause(longer)
                    longer *= 2
        self._budget -= 1


class Persistent:
    """A model whose calls are made again when they fail."""

    def __init__(self, model: Model, calls: Calls) -> None:
        self.name = model.name
        self._model = model
        self._calls = calls

    async def reply(self, conversation: Conversation) -> Reply:
        attempt = 1
        while True:
            self._calls.check()
            try:
                reply = await self._model.reply(conversation)
            except ModelError as error:
                attempt = await self._calls.failed(error, attempt)
                continue
            self._calls.answered()
            return reply
