"""Workers in processes of their own, on this machine: one that dies is replaced, and what it was playing is owed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Raw

from rollmill.collection.worker import Job, Played, Pressure, together
from rollmill.engines.channel import Channel
from rollmill.engines.messages import Beat, Begin, Credit, Drain, Ended, Fault, Lease, Ready, read_report
from rollmill.errors import ConfigError, ContractError, OutageError, RunError
from rollmill.launch import Setup
from rollmill.store.schema import Entry
from rollmill.types import Failure, encode

SILENT_S = 120.0
"""A worker that has said nothing for so long is hung, and is killed."""
_START_S = 120.0
_WATCH_S = 1.0
_MOST_DEATHS = 5
_END_S = 1.0
_FAULTS: dict[str, type[Exception]] = {"config": ConfigError, "contract": ContractError, "outage": OutageError}


class Member:
    """One worker process: what it is playing, and how much more it takes."""

    def __init__(self, setup: Setup, changed: Callable[[], None]) -> None:
        self._setup, self._changed = setup, changed
        self.credit = 0
        self.pressure = Pressure()
        self.fault: Exception | None = None
        self.ended = 0
        self._leases: dict[int, tuple[Job, asyncio.Future[Played]]] = {}
        self._number = 0
        self._heard_at = time.monotonic()
        self._ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._process: Process | None = None
        self._channel: Channel | None = None
        self._pipe = -1

    async def start(self) -> None:
        """Returns when it is ready. Raises what it says is wrong."""
        ours, theirs = socket.socketpair()
        reading, self._pipe = os.pipe()
        loop = asyncio.get_running_loop()
        try:
            ours.setblocking(False)
            _, self._channel = await loop.create_connection(lambda: Channel(self._heard, self._lost), sock=ours)
            command = (sys.executable, "-m", "rollmill.engines.program", str(theirs.fileno()), str(reading))
            # Its standard output is ours for errors: what an environment prints must not mix with the result. And
            # Ctrl-C on the terminal reaches the command alone.
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=sys.stderr.fileno(),
                pass_fds=(theirs.fileno(), reading),
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(reading)
        self._channel.send(Begin(self._setup, sys.path))
        await self._until_ready()

    async def _until_ready(self) -> None:
        waiting = [asyncio.ensure_future(one.wait()) for one in (self._ready, self._gone)]
        try:
            await asyncio.wait(waiting, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if self.fault is not None:
            raise self.fault
        if not self._ready.is_set():
            why = "ended while it started" if self._gone.is_set() else f"was not ready in {_START_S:g} s"
            await self.kill()
            raise RunError(f"a worker process {why}: see what it wrote above")

    def play(self, job: Job) -> asyncio.Future[Played]:
        self._number += 1
        self.credit -= 1
        future: asyncio.Future[Played] = asyncio.get_running_loop().create_future()
        self._leases[self._number] = (job, future)
        if self._channel is not None:
            self._channel.send(Lease(self._number, job.slot, job.attempt, encode(job.task.fields)))
        return future

    def drain(self) -> None:
        if self._channel is not None:
            self._channel.send(Drain())

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._heard_at

    async def kill(self) -> None:
        """It and what it started, except for processes that made groups of their own: those see their input end."""
        if self._channel is not None:
            self._channel.close()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._process is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S if self.alive else 0):
                await self._process.wait()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def code(self) -> int | None:
        return await self._process.wait() if self._process is not None else None

    # What it says.

    def _heard(self, message: bytes) -> None:
        self._heard_at = time.monotonic()
        match read_report(message):
            case Ended() as ended:
                self._settle(ended)
            case Credit(count):
                self.credit += count
                self._changed()
            case Beat() as beat:
                self.pressure = beat.pressure
            case Ready():
                self._ready.set()
            case Fault(kind, text):
                self._fail(_FAULTS.get(kind, RunError)(text))

    def _settle(self, ended: Ended) -> None:
        _, future = self._leases.pop(ended.number)
        self.ended += 1
        if not future.done():
            future.set_result(Played(ended.entry, ended.row, Raw(ended.response)))

    def _fail(self, error: Exception) -> None:
        self.fault = error
        for _, future in self._leases.values():
            if not future.done():
                future.set_exception(error)
                # Whoever asked may have gone.
                future.exception()
        self._leases.clear()

    def _lost(self) -> None:
        """The process is gone; what it was playing failed, and may be tried again."""
        self._gone.set()
        self.credit = 0
        for job, future in self._leases.values():
            if not future.done():
                future.set_result(_orphaned(job))
        self._leases.clear()
        self._changed()


class ProcessCrew:
    """So many workers. Enter it; it is a crew as the worker in the command's own process is."""

    def __init__(self, setup: Setup, count: int, say: Callable[[str], None]) -> None:
        places = None if setup.places is None else -(-setup.places // count)
        self._setup = msgspec.structs.replace(setup, places=places, share=count)
        self._count, self._say = count, say
        self._members: list[Member] = []
        self._freed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._draining = False
        self._fault: Exception | None = None
        self._deaths = 0

    async def __aenter__(self) -> Self:
        self._members = [Member(self._setup, self._freed.set) for _ in range(self._count)]
        try:
            await asyncio.gather(*(member.start() for member in self._members))
        except BaseException:
            await self._end()
            raise
        self._watching = asyncio.create_task(self._watch(), name="workers")
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._end()

    async def _end(self) -> None:
        await asyncio.gather(*(member.kill() for member in self._members), return_exceptions=True)

    # As a worker.

    async def play(self, job: Job) -> Played:
        while True:
            if self._fault is not None:
                raise self._fault
            alive = [member for member in self._members if member.alive]
            if alive:
                return await max(alive, key=lambda member: member.credit).play(job)
            # All have ended, and others are being started.
            await asyncio.sleep(_WATCH_S / 10)

    def drain(self) -> None:
        self._draining = True
        for member in self._members:
            member.drain()

    def pressure(self) -> Pressure:
        return together(member.pressure for member in self._members)

    # As its own admission: each worker says how much it takes.

    @property
    def admission(self) -> Self:
        return self

    def room(self, agent: str) -> bool:
        return self._fault is not None or any(member.credit > 0 for member in self._members)

    def enter(self, agent: str) -> None:
        """The credit is spent when the lease is sent."""

    def leave(self, agent: str) -> None:
        """The worker says when it has room."""

    async def changed(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    # Watching over them.

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            for place, member in enumerate(self._members):
                if member.alive and member.silent_s > SILENT_S:
                    self._say(f"A worker has said nothing for {SILENT_S:g} s and is killed; its slots are played again")
                    await member.kill()
                if not member.alive and not self._draining:
                    await self._replace(place, member)

    async def _replace(self, place: int, member: Member) -> None:
        code = await member.code()
        await member.kill()
        self._deaths = 1 if member.ended else self._deaths + 1
        self._say(f"A worker process ended ({_told(code)}); its slots are played again by another")
        if self._deaths >= _MOST_DEATHS:
            self._stop(RunError(f"{self._deaths} worker processes ended without one rollout between; see above"))
            return
        new = Member(self._setup, self._freed.set)
        try:
            await new.start()
        except Exception as error:  # noqa: BLE001
            self._stop(error)
        else:
            self._members[place] = new

    def _stop(self, error: Exception) -> None:
        """Whoever plays next hears of it."""
        self._fault = error
        self._freed.set()


def _told(code: int | None) -> str:
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _orphaned(job: Job) -> Played:
    failure = Failure("infrastructure", "worker_died", "the process that played it ended", retryable=True)
    return Played(Entry(slot=job.slot, stop="failed", failure=failure, attempt=job.attempt))
