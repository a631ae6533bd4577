"""Model calls that fail are made again where they failed: a conversation of many turns is not begun anew for a 429."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from rollmill.collection.budget import Budget
from rollmill.collection.rates import Rates
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.throttle import Fixed, Throttle
from rollmill.collection.verdict import Verdict
from rollmill.collection.worker import Pressure
from rollmill.errors import ModelError, RolloutError
from rollmill.model import Conversation, Model
from rollmill.types import Failure, Reply, Spans

UNBOUNDED = 1_000_000
"""Permits where only the number of rollouts bounds the calls."""
BUSY_S = 1800.0
"""How long one call waits at most for a model that is busy, and all of them for one that answers nobody."""
_REFUSED_ATTEMPTS = 3
_LONGEST_SPREAD_S = 5.0


class Trouble(msgspec.Struct):
    """What one call has been through."""

    since: float
    answers: int
    """How many calls of the model had been answered when this one first failed."""
    attempts: int = 0


class Calls:
    """What all calls of one model share: how many, how fast, when to try again, and when everything fails."""

    def __init__(
        self,
        name: str,
        retry: RetryPolicy = RetryPolicy(attempts=6),
        *,
        throttle: Throttle | None = None,
        rates: Rates | None = None,
        outage_s: float = 50.0,
        spans: Spans | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spans` hears how long calls waited, and how long the model took."""
        self.name = name
        self._spans = spans
        self.throttle: Throttle = throttle or Fixed(UNBOUNDED, clock=clock)
        self._bounded = throttle is not None
        self._rates = rates
        self._retry = retry
        self._clock = clock
        self._verdict = Verdict(name, retry=retry, outage_s=outage_s, busy_s=BUSY_S)
        self._budget = Budget()
        self._closing, self._faulted = asyncio.Event(), asyncio.Event()
        self._drained = False
        self._under_way = 0
        self._paused_until, self._paused_by = float("-inf"), ""
        self.retries: Counter[str] = Counter()
        """Calls that were made again, by what had failed."""
        self.waited_s = dict.fromkeys(("permit", "rate", "pause", "backoff"), 0.0)
        """Time that calls have waited for a `permit`, for the `rate`, in a `pause`, and in `backoff`."""

    def drain(self) -> None:
        self._drained = True
        self._closing.set()

    @property
    def stopped(self) -> bool:
        """Whether something has been found that stops a run."""
        return self._verdict.fault is not None

    def check(self) -> None:
        """Raise what has stopped the run."""
        if self._verdict.fault is not None:
            raise self._verdict.fault.with_traceback(None)

    @property
    def paused(self) -> str:
        """Until when nothing is sent, and why; nothing where calls go out."""
        left = self._paused_until - self._clock()
        return f"{self.name} asked for a pause, {left:.0f} s more: {self._paused_by}" if left > 0 else ""

    def pressure(self) -> Pressure:
        throttle, waited_s = self.throttle, self.waited_s
        return Pressure(
            calls=self._under_way,
            limit=throttle.limit if self._bounded else None,
            waiting=throttle.waiting + throttle.in_flight - self._under_way,
            retries=dict(self.retries),
            permit_s=waited_s["permit"],
            rate_s=waited_s["rate"],
            backoff_s=waited_s["backoff"] + waited_s["pause"],
            paused=self.paused,
        )

    async def make(self, model: Model, conversation: Conversation) -> Reply:
        """Ask until there is an answer, or no sense in another attempt."""
        trouble: Trouble | None = None
        while True:
            try:
                return await self._once(model, conversation)
            except ModelError as error:
                trouble = trouble or Trouble(self._clock(), self._verdict.answers)
                await self._again(error, trouble)

    async def _once(self, model: Model, conversation: Conversation) -> Reply:
        self.check()
        throttle, began = self.throttle, self._clock()
        saturated = await throttle.acquire()
        try:
            self._waited("permit", began)
            guess, delayed = await self._cleared()
            call = throttle.sent(saturated=saturated and not delayed)
            self._under_way += 1
            asked = 0.0 if self._spans is None else self._clock()
            try:
                reply = await model.reply(conversation)
            except ModelError as error:
                throttle.failed(call, error.failure)
                if self._rates is not None:
                    self._rates.used(guess, 0)
                raise
            finally:
                self._under_way -= 1
                if self._spans is not None:
                    self._spans.add("model", self._clock() - asked, self.name)
            throttle.succeeded(call)
            if self._rates is not None:
                self._rates.used(guess, reply.usage.total_tokens)
        finally:
            throttle.release()
        self._verdict.answered()
        self._budget.earn()
        return reply

    async def _cleared(self) -> tuple[float, bool]:
        """Wait until nothing forbids to send: the tokens taken for it, and whether there was anything to wait for."""
        delayed = self._clock() < self._paused_until
        if delayed:
            await self._opened()
        guess, wait = 0.0, 0.0
        if self._rates is not None:
            wait, guess = self._rates.reserve()
            try:
                if wait > 0:
                    # Whoever waits for nothing but its turn is no retry: a drain lets it come.
                    await self._sleep(wait, "rate", self._faulted)
                    self.check()
                await self._opened()
            except BaseException:
                self._rates.unsent(guess)
                raise
        self.check()
        return guess, delayed or wait > 0

    async def _opened(self) -> None:
        while (left := self._paused_until - self._clock()) > 0:
            # A little later each, or the end of the pause would be a wave.
            spread = random.uniform(0, min(_LONGEST_SPREAD_S, 0.1 + left / 10))
            await self._sleep(left + spread, "pause", self._closing)
            self._awake()

    async def _again(self, error: ModelError, trouble: Trouble) -> None:
        """Return when the call may be made again; raises where there is no other attempt."""
        failure = error.failure
        trouble.attempts += 1
        self._heed(failure, trouble)
        wait = self._wait(failure, trouble)
        if wait is None:
            raise _given_up(failure) from error
        await self._opened()
        await self._sleep(wait, "backoff", self._closing)
        self._awake()
        began = self._clock()
        try:
            await self._budget.spend(self._closing, lambda: self._verdict.left(self._clock()))
        finally:
            self._waited("backoff", began)
        self._awake()
        if not failure.retryable and self._wait(failure, trouble) is None:
            raise _given_up(failure) from error
        self.retries[failure.kind] += 1

    def _heed(self, failure: Failure, trouble: Trouble) -> None:
        now = self._clock()
        asked = failure.retry_after_s or 0.0
        if asked > 0 and not self._retry.asks_too_much(failure) and now + asked > self._paused_until:
            self._paused_until, self._paused_by = now + asked, failure.detail
        self._verdict.failed(failure, now, who=id(trouble), in_flight=self._under_way)
        if self._verdict.fault is not None:
            self._closing.set()
            self._faulted.set()
        self.check()

    def _wait(self, failure: Failure, trouble: Trouble) -> float | None:
        if not failure.retryable or self._retry.asks_too_much(failure):
            return self._wait_for_others(failure, trouble)
        if self._clock() - trouble.since > BUSY_S:
            return None
        # A limit of rate says nothing against the request, and neither does a server that is away for everybody.
        excused = failure.kind == "rate_limit" or self._verdict.suspects
        attempt = min(trouble.attempts, self._retry.attempts - 1) if excused else trouble.attempts
        # What the server asked for is a pause for all, and on top of it each waits on its own.
        wait = self._retry.wait(msgspec.structs.replace(failure, retry_after_s=None), max(1, attempt))
        if wait is None or failure.retry_after_s or not self._verdict.suspects:
            return wait
        left = self._verdict.left(self._clock())
        return wait if left is None else min(wait, left + self._retry.first_s * random.random())

    def _wait_for_others(self, failure: Failure, trouble: Trouble) -> float | None:
        """A request that was refused is the only wrong one as soon as another is answered; until then, who knows."""
        others = self._verdict.answers if failure.kind == "caller" else self._verdict.answers - trouble.answers
        if others or trouble.attempts >= _REFUSED_ATTEMPTS:
            return None
        return self._retry.first_s * random.uniform(0.5, 1.0)

    async def _sleep(self, seconds: float, why: str, until: asyncio.Event) -> None:
        began = self._clock()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await until.wait()
        finally:
            self._waited(why, began)

    def _waited(self, why: str, began: float) -> None:
        waited = self._clock() - began
        self.waited_s[why] += waited
        if self._spans is not None:
            self._spans.add("queue", waited, why)

    def _awake(self) -> None:
        self.check()
        if self._drained:
            raise RolloutError(Failure("infrastructure", "drained", "the run was stopped before the next attempt"))


class Persistent:
    """A model whose calls are made again when they fail."""

    def __init__(self, model: Model, calls: Calls) -> None:
        self.name = model.name
        self._model = model
        self._calls = calls

    def reply(self, conversation: Conversation) -> Coroutine[Any, Any, Reply]:
        return self._calls.make(self._model, conversation)


class Lasting:
    """The same for a service, which outlives runs: what would stop one is forgotten when it has been said."""

    def __init__(self, model: Model, make: Callable[[], Calls]) -> None:
        """`make` gives calls that nothing has stopped yet."""
        self.name = model.name
        self._model, self._make = model, make
        self._calls = make()

    async def reply(self, conversation: Conversation) -> Reply:
        if self._calls.stopped:
            self._calls = self._make()
        return await self._calls.make(self._model, conversation)


def _given_up(failure: Failure) -> RolloutError:
    # It was tried as often as makes sense; to play the whole rollout again would begin anew.
    return RolloutError(msgspec.structs.replace(failure, retryable=False))
