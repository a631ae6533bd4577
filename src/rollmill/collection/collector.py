"""Plays a plan: a bounded number of rollouts at once, each recorded when it ends, failures tried again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec
from msgspec import Raw

from rollmill.collection.plan import Feed
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.worker import Admission, Job, Played, Worker
from rollmill.errors import CallerError, OutageError
from rollmill.store.schema import Entry
from rollmill.types import Rollout, Spans, encode

_SHARE_AFTER = 100
"""How many slots must have ended before a share of failures means something."""


class Observer(Protocol):
    """Hears what happens, in the event loop: quick, and never raising."""

    def ended(self, entry: Entry) -> None:
        """A slot is done: rewarded, or failed for good."""

    def retrying(self, entry: Entry, wait_s: float) -> None:
        """An attempt failed and there will be another."""


class Recorder(Protocol):
    """Keeps every attempt. What it has returned from is safe."""

    async def rewarded(self, entry: Entry, row: bytes) -> None: ...

    async def failed(self, entry: Entry, response: Raw, *, final: bool, task: Raw = Raw(b"null")) -> None:
        """`task` is the row that was played, where no attempt follows."""

    @property
    def broken(self) -> bool:
        """Whether nothing can be recorded any more."""
        ...

    async def until_broken(self) -> None:
        """Wait for what broke it, and raise that."""


class Forgetful:
    """Keeps nothing: for a caller who takes the rollouts as they end."""

    async def rewarded(self, entry: Entry, row: bytes) -> None:
        pass

    async def failed(self, entry: Entry, response: Raw, *, final: bool, task: Raw = Raw(b"null")) -> None:
        pass

    broken = False

    async def until_broken(self) -> None:
        await asyncio.Event().wait()


class Running(msgspec.Struct, frozen=True):
    """A rollout that is being played."""

    job: Job
    since: float


class Collector:
    """`run` plays until the plan is empty. `drain` lets what runs end and starts nothing more."""

    def __init__(
        self,
        worker: Worker,
        feed: Feed,
        *,
        admission: Admission,
        recorder: Recorder = Forgetful(),
        observers: Iterable[Observer] = (),
        deliver: Callable[[Rollout], Awaitable[None]] | None = None,
        retry: RetryPolicy = RetryPolicy(),
        max_failures: float | None = None,
        idle_s: float | None = None,
        spans: Spans | None = None,
    ) -> None:
        """`max_failures` below 1 is a share of what has ended.

        A feed that may have more rows later ends when none have come for `idle_s`, and all have ended.
        """
        self._spans = spans
        self._idle_s = idle_s
        self._worker = worker
        self._feed = feed
        self._admission = admission
        self._recorder = recorder
        self._observers = tuple(observers)
        self._deliver = deliver
        self._retry = retry
        self._max_failures = max_failures
        self._draining = asyncio.Event()
        self._fault: CallerError | OutageError | None = None
        self._running: dict[str, Running] = {}
        self.ended = self.failed = self.most_running = 0
        self.stopped = ""
        """Why it stopped by itself, if it did."""

    async def run(self) -> None:
        """Raises after what runs has been recorded, if the plan turned out wrong or the model gone.

        It does at once where nothing can be recorded any more: what runs would be played for nothing.
        """
        try:
            async with asyncio.TaskGroup() as whole:
                broken = whole.create_task(self._recorder.until_broken())
                try:
                    async with asyncio.TaskGroup() as group:
                        await self._admit(group)
                finally:
                    broken.cancel()
        except BaseExceptionGroup as failed:
            raise _first(failed) from None
        if self._fault is not None:
            raise self._fault

    def drain(self) -> None:
        self._draining.set()
        self._worker.drain()

    def stop(self, why: str) -> None:
        """Drain, and say why."""
        self.stopped = self.stopped or why
        self.drain()

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def oldest(self) -> Running | None:
        return next(iter(self._running.values()), None)

    @property
    def follows(self) -> bool:
        """Whether more rows may come than there are."""
        return self._feed.grows

    @property
    def waited_s(self) -> float | None:
        """How long it has waited for rows; None where there is something to play."""
        return None if self._running or self._feed.size else self._feed.waited_s

    async def _admit(self, group: asyncio.TaskGroup) -> None:
        draining = group.create_task(self._until_drained())
        arriving: asyncio.Task[None] | None = None
        try:
            while not self.draining:
                if (job := self._feed.take(self._admission.room)) is not None:
                    self._admission.enter(job.slot.agent)
                    self._running[job.slot.key] = Running(job, time.monotonic())
                    self.most_running = max(self.most_running, len(self._running))
                    group.create_task(self._work(job))
                elif self._reads():
                    # Rows that have all ended are many at once: others must have their turn.
                    await asyncio.sleep(0)
                elif self._feed.size or self._feed.waits:
                    if self._feed.waits and (arriving is None or arriving.done()):
                        arriving = group.create_task(self._feed.arrival())
                    await self._until_changed(draining, arriving if self._feed.waits else None)
                else:
                    return
        finally:
            for one in (draining, arriving):
                if one is not None:
                    one.cancel()

    async def _until_drained(self) -> None:
        await self._draining.wait()

    def _reads(self) -> bool:
        """Read ahead; False where enough waits already, no more have come, or nothing is left."""
        if self._feed.exhausted:
            return False
        before = self._feed.size
        try:
            self._feed.read()
        except CallerError as error:
            self._stop(error)
            return False
        return self._feed.size != before or not (self._feed.exhausted or self._feed.size or self._feed.waits)

    async def _until_changed(self, *waiting: asyncio.Task[None] | None) -> None:
        """Until there may be room for a job that waits, or one of these has ended."""
        changed = asyncio.ensure_future(self._admission.changed()) if self._feed.size else None
        try:
            ending = [one for one in (changed, *waiting) if one is not None]
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if changed is not None:
                changed.cancel()
        if self._idle_s is not None and (self.waited_s or 0.0) >= self._idle_s:
            self._feed.finish()

    async def _work(self, job: Job) -> None:
        try:
            await self._play(job)
        except (CallerError, OutageError) as error:
            self._stop(error)
        finally:
            del self._running[job.slot.key]
            self._admission.leave(job.slot.agent)

    async def _play(self, job: Job) -> None:
        if self._spans is not None:
            self._spans.add("queue", time.monotonic() - self._running[job.slot.key].since, "begin")
        # It would be played for nothing; `run` raises what broke the recorder.
        while not self._recorder.broken:
            played = await self._worker.play(job)
            entry = played.entry
            failure = entry.failure
            if failure is not None and failure.kind == "drained":
                await self._record(job, played, final=False)
                return
            wait = None if failure is None else self._retry.wait(failure, job.attempt)
            await self._record(job, played, final=wait is None)
            if wait is None:
                await self._end(played)
                return
            for observer in self._observers:
                observer.retrying(entry, wait)
            if await self._drained_within(wait):
                # The slot is owed: the same command will play it.
                return
            job = msgspec.structs.replace(job, attempt=job.attempt + 1)

    async def _end(self, played: Played) -> None:
        self._count(played.entry)
        if self._deliver is not None and played.rollout is not None:
            await self._deliver(played.rollout)

    async def _record(self, job: Job, played: Played, *, final: bool) -> None:
        began = 0.0 if self._spans is None else time.monotonic()
        if played.entry.failure is None:
            await self._recorder.rewarded(played.entry, played.row)
        else:
            row = Raw(encode(job.task.fields) if final else b"null")
            await self._recorder.failed(played.entry, played.response, final=final, task=row)
        if self._spans is not None:
            self._spans.add("store", time.monotonic() - began)

    def _count(self, entry: Entry) -> None:
        self.ended += 1
        for observer in self._observers:
            observer.ended(entry)
        if entry.failure is not None:
            self.failed += 1
            self._heed_failures()

    def _heed_failures(self) -> None:
        most = self._max_failures
        if most is None:
            return
        if most >= 1 and self.failed > most:
            self.stop(f"{self.failed} slots failed, and max_failures is {most:g}")
        elif most < 1 and self.ended >= _SHARE_AFTER and self.failed > most * self.ended:
            self.stop(f"{self.failed} of {self.ended} slots failed, and max_failures is {most:g}")

    async def _drained_within(self, seconds: float) -> bool:
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await self._draining.wait()
        except TimeoutError:
            return False
        finally:
            if self._spans is not None:
                self._spans.add("queue", time.monotonic() - began, "retry")

    def _stop(self, error: CallerError | OutageError) -> None:
        if self._fault is None:
            self._fault = error
        self.drain()


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
