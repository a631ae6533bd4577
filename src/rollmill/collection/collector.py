"""Plays a plan: a bounded number of rollouts at once, each recorded when it ends, failures tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from rollmill.collection.retry import RetryPolicy
from rollmill.collection.worker import Job, Worker
from rollmill.errors import CallerError, ConfigError
from rollmill.types import Failure, Rollout

REFUSALS = 3
"""How many refusals in a row stop a run."""


class Observer(Protocol):
    """Hears what happens, in the event loop: quick, and never raising."""

    def ended(self, rollout: Rollout) -> None:
        """A slot is done: rewarded, or failed for good."""

    def retrying(self, rollout: Rollout, wait_s: float) -> None:
        """An attempt failed and there will be another."""


class Recorder(Protocol):
    """Keeps every attempt. What it has returned from is safe."""

    async def record(self, rollout: Rollout) -> None: ...


class Forgetful:
    """Keeps nothing: for a caller who takes the rollouts as they end."""

    async def record(self, rollout: Rollout) -> None:
        pass


class Collector:
    """`run` plays until the plan is empty. `drain` lets what runs end and starts nothing more."""

    def __init__(
        self,
        worker: Worker,
        plan: Iterable[Job],
        *,
        places: int,
        recorder: Recorder = Forgetful(),
        observers: Iterable[Observer] = (),
        deliver: Callable[[Rollout], Awaitable[None]] | None = None,
        retry: RetryPolicy = RetryPolicy(),
    ) -> None:
        self._worker = worker
        self._jobs: Iterator[Job] = iter(plan)
        self._places = places
        self._recorder = recorder
        self._observers = tuple(observers)
        self._deliver = deliver
        self._retry = retry
        self._draining = asyncio.Event()
        self._planned = True
        self._fault: CallerError | None = None
        self._refusals = 0
        self._last_refusal = Failure("model", "denied", "")
        self._rewarded = False
        self.running = self.ended = 0

    async def run(self) -> None:
        """Raises `CallerError` after what runs has been recorded, if the plan or every model call turned out wrong."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._places):
                    group.create_task(self._work(), name=f"place {number}")
                    # The first places take work before the last ones exist: a short plan needs no more of them.
                    await asyncio.sleep(0)
                    if not self._planned or self.draining:
                        break
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if self._fault is not None:
            raise self._fault
        if self._refusals and not self._rewarded:
            raise self._refused(self._last_refusal)

    def drain(self) -> None:
        self._draining.set()

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    async def _work(self) -> None:
        while (job := self._next()) is not None:
            self.running += 1
            try:
                await self._play(job)
                # A rollout that waits for nothing would keep signals and its siblings waiting.
                await asyncio.sleep(0)
            except CallerError as error:
                self._stop(error)
            finally:
                self.running -= 1

    def _next(self) -> Job | None:
        if self.draining or not self._planned:
            return None
        try:
            job = next(self._jobs, None)
        except CallerError as error:
            self._stop(error)
            return None
        self._planned = job is not None
        return job

    async def _play(self, job: Job) -> None:
        while True:
            rollout = await self._worker.play(job)
            failure = rollout.failure
            self._heed(rollout)
            wait = None if failure is None else self._retry.wait(failure, job.attempt)
            await self._recorder.record(rollout)
            if wait is None:
                break
            for observer in self._observers:
                observer.retrying(rollout, wait)
            if await self._drained_within(wait):
                # The slot is owed: the same command will play it.
                return
            job = msgspec.structs.replace(job, attempt=job.attempt + 1)
        self.ended += 1
        for observer in self._observers:
            observer.ended(rollout)
        if self._deliver is not None:
            await self._deliver(rollout)

    def _heed(self, rollout: Rollout) -> None:
        """One refusal may be a stray; several in a row, and no success between, are the key or the name."""
        failure = rollout.failure
        if failure is None:
            self._refusals, self._rewarded = 0, True
        elif failure.kind == "denied":
            self._refusals += 1
            self._last_refusal = failure
            if self._refusals >= REFUSALS:
                self._stop(self._refused(failure))

    @staticmethod
    def _refused(failure: Failure) -> ConfigError:
        return ConfigError(f"the model refuses every request: {failure.detail}")

    async def _drained_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._draining.wait()
        except TimeoutError:
            return False

    def _stop(self, error: CallerError) -> None:
        if self._fault is None:
            self._fault = error
        self.drain()
