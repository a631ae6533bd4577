"""Workers in processes of their own, on this machine: one that dies is replaced, and what it was playing is owed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Raw

from rollmill.collection.worker import Job, Played, Pressure, together
from rollmill.engines.channel import Channel
from rollmill.engines.messages import Beat, Begin, Credit, Drain, Ended, Fault, Finish, Lease, Ready, Told, read_report
from rollmill.engines.parts import bounds_of, parts_of
from rollmill.errors import CallerError, ConfigError, ContractError, OutageError, RunError
from rollmill.launch import Setup
from rollmill.profiling.profile import Profile
from rollmill.store.schema import Entry
from rollmill.types import Failure, encode

SILENT_S = 120.0
"""A worker that has said nothing for so long is hung, and is killed."""
_START_S = 600.0
_TICK_S = 1.0
_MOST_DEATHS = 5
_END_S = 10.0
"""How long a worker may take to close what its environments hold."""
_SHORT_END_S = 1.0
"""The same, where somebody waits for the command to stop."""
_LAST_WORDS_S = 1.0
_FAULTS: dict[str, type[Exception]] = {"config": ConfigError, "contract": ContractError, "outage": OutageError}


class Died(Exception):  # noqa: N818
    """A worker was killed before it was ready."""

    def __init__(self, code: int) -> None:
        super().__init__(told(code))
        self.code = code


class Leased:
    """A job on its way to a worker, waiting there, or being played."""

    __slots__ = ("began", "job", "played")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.began = False
        self.played: asyncio.Future[Played | None] = asyncio.get_running_loop().create_future()

    def end(self, played: Played | None) -> None:
        if not self.played.done():
            self.played.set_result(played)

    def fail(self, error: Exception) -> None:
        if not self.played.done():
            self.played.set_exception(error)


class Member:
    """One worker process: what it is playing, and how much more it takes."""

    def __init__(self, setup: Setup, changed: Callable[[], None], profile: Profile | None = None) -> None:
        self._setup, self._changed, self._profile = setup, changed, profile
        self.pressure = Pressure()
        self.fault: Exception | None = None
        self.silent_s = 0.0
        """For how long nothing has come from it, as its watcher counts."""
        self.ended = 0
        self._told = False
        self._ahead = 0
        self._waiting: Counter[str] = Counter()
        self._leases: dict[int, Leased] = {}
        self._number = 0
        self._ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._process: Process | None = None
        self._ending: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._pipe = -1

    async def start(self) -> None:
        """Returns when it is ready. Raises what it says is wrong, and `Died` if it is killed meanwhile."""
        try:
            await self._spawn()
            await self._until_ready()
        except OSError as error:
            await self.kill()
            raise RunError(f"a worker process could not be started: {error}") from None
        except Exception:
            await self.kill(_SHORT_END_S)
            raise
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            _, self._channel = await loop.create_connection(lambda: Channel(self._heard, self._lost), sock=ours)
            reading, self._pipe = os.pipe()
            try:
                # -P: a file in the working directory is not taken for a module of the same name.
                words = (sys.executable, "-P", "-m", "rollmill.engines.program", str(theirs.fileno()), str(reading))
                # Its standard output is ours for errors: what an environment prints must not mix with the result. And
                # Ctrl-C on the terminal reaches the command alone.
                self._process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=DEVNULL,
                    stdout=sys.stderr.fileno(),
                    pass_fds=(theirs.fileno(), reading),
                    start_new_session=True,
                )
            finally:
                os.close(reading)
        finally:
            theirs.close()
        self._ending = asyncio.create_task(self._see_the_end(self._process))
        self._channel.send(Begin(self._setup, sys.path, profile=self._profile is not None))

    async def _until_ready(self) -> None:
        waiting = [asyncio.ensure_future(one.wait()) for one in (self._ready, self._gone)]
        try:
            await asyncio.wait(waiting, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if self.fault is not None:
            raise self.fault
        if self._ready.is_set():
            return
        if not self._gone.is_set():
            raise RunError(f"a worker process was not ready in {_START_S:g} s")
        code = await self.kill(_SHORT_END_S)
        if code < 0:
            raise Died(code)
        raise RunError(f"a worker process ended while it started ({told(code)}): see what it wrote above")

    def takes(self, agent: str) -> int:
        """How many leases more may come."""
        return self._ahead - self._waiting[agent] if self.alive else 0

    def load(self, agent: str) -> tuple[int, int]:
        """The smaller, the sooner it begins with one more."""
        return self._waiting[agent], len(self._leases)

    async def play(self, job: Job) -> Played | None:
        """None where it ended before it had begun with this."""
        self._number += 1
        leased = self._leases[self._number] = Leased(job)
        self._waiting[job.slot.agent] += 1
        if self._channel is not None:
            self._channel.send(Lease(self._number, job.slot, job.attempt, encode(job.task.fields)))
        return await leased.played

    def drain(self) -> None:
        if self._channel is not None:
            self._channel.send(Drain())

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    async def watched(self, silent_s: float, say: Callable[[str], None]) -> int:
        """Returns when it has ended, with its exit code. If it is silent for so long, it is killed."""
        while self.alive:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._gone.wait()
            # By ticks, not by the clock: a command that was stopped itself has heard nobody.
            self.silent_s += _TICK_S
            if self.alive and self.silent_s > silent_s:
                say(f"A worker has said nothing for {silent_s:g} s and is killed; its slots are played again")
                break
        return await self.kill()

    async def kill(self, patience_s: float = 0.0) -> int:
        """It and what it started, except for processes that made groups of their own: those see their input end.

        It may have `patience_s` to end by itself.
        """
        process = self._process
        try:
            if self._channel is not None and patience_s:
                self._channel.send(Finish())
            elif self._channel is not None:
                self._channel.close()
            if process is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await process.wait()
        finally:
            if self._pipe >= 0:
                os.close(self._pipe)
                self._pipe = -1
            if process is not None and process.returncode is None:
                kill_group(process.pid)
            elif process is None and self._channel is not None:
                self._channel.abort()
            if self._ending is not None:
                # Soon, and also where whoever asked is cancelled: nobody else will.
                await self._ending
        return process.returncode or 0 if process is not None else 0

    async def _see_the_end(self, process: Process) -> None:
        await process.wait()
        # At once, while nobody else can have the number.
        kill_group(process.pid)
        # What it said last is read first. The connection may outlive it in a process that it forked.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._gone.wait()
        if self._channel is not None:
            self._channel.abort()
        await self._gone.wait()

    # What it says.

    def _heard(self, message: bytes) -> None:
        self.silent_s = 0.0
        match read_report(message):
            case Ended() as ended:
                self._end(ended)
            case Credit(number):
                self._begun(number)
            case Beat() as beat:
                self.pressure = beat.pressure
            case Ready(ahead):
                self._ahead = ahead
                self._ready.set()
            case Told(measured) if self._profile is not None:
                self._profile.heard(self, measured)
                self._told = True
            case Fault() as fault:
                self._fail(_FAULTS.get(fault.kind, RunError)(fault.text), fault.number)

    def _begun(self, number: int) -> None:
        leased = self._leases[number]
        leased.began = True
        self._waiting[leased.job.slot.agent] -= 1
        self._changed()

    def _end(self, ended: Ended) -> None:
        self.ended += 1
        self._settled(ended.number).end(Played(ended.entry, ended.row, Raw(ended.response)))

    def _fail(self, error: Exception, number: int) -> None:
        if number:
            self._settled(number).fail(error)
            return
        self.fault = error
        for leased in self._leases.values():
            leased.fail(error)
        self._leases.clear()

    def _settled(self, number: int) -> Leased:
        leased = self._leases.pop(number)
        if not leased.began:
            self._waiting[leased.job.slot.agent] -= 1
        return leased

    def _lost(self) -> None:
        """The process is gone; what it was playing failed, and may be tried again."""
        self._gone.set()
        if self._profile is not None and not self._told:
            self._profile.lose()
        for leased in self._leases.values():
            leased.end(_failed(leased.job, self._setup.run, _ORPHANED) if leased.began else None)
        self._leases.clear()
        self._changed()


class ProcessCrew:
    """So many workers. Enter it; it is a crew as the worker in the command's own process is."""

    def __init__(
        self,
        setup: Setup,
        count: int,
        say: Callable[[str], None],
        *,
        silent_s: float = SILENT_S,
        profile: Profile | None = None,
    ) -> None:
        """With a `profile` the workers measure themselves, and tell it at the end."""
        self._profile = profile
        self._run, self._outage_s = setup.run, setup.outage_s
        self._count, self._parts = count, parts_of(setup, count)
        self._bounds = bounds_of(setup)
        self._entered: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        """Those of them that are not leased yet."""
        self._say, self._silent_s = say, silent_s
        self._members: dict[int, Member] = {}
        self._watching: list[asyncio.Task[None]] = []
        self._freed = asyncio.Event()
        self._draining = False
        self._fault: Exception | None = None
        self._past = Pressure(limit=0)
        """What workers that have ended went through."""
        self._ended = 0
        """How many leases they had ended."""

    async def __aenter__(self) -> Self:
        if len(self._parts) < self._count:
            self._say(f"{self._count} workers are too many: a limit lets no more than {len(self._parts)} play at once")
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(self._parts)):
                    group.create_task(self._man(place))
        except BaseExceptionGroup as failed:
            await self._end(_SHORT_END_S)
            raise failed.exceptions[0] from None
        except BaseException:
            await self._end(_SHORT_END_S)
            raise
        self._watching = [asyncio.create_task(self._keep(place), name=f"worker {place}") for place in self._members]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watching in self._watching:
            watching.cancel()
        try:
            await asyncio.gather(*self._watching, return_exceptions=True)
        finally:
            await self._end(_END_S if kind is None else _SHORT_END_S)

    async def _end(self, patience_s: float) -> None:
        await asyncio.gather(*(member.kill(patience_s) for member in self._members.values()), return_exceptions=True)

    # As a worker.

    async def play(self, job: Job) -> Played:
        agent = job.slot.agent
        # What is tried again has entered before; it does no harm if it is counted for another.
        self._coming[agent] -= self._coming[agent] > 0
        while True:
            if self._fault is not None:
                raise self._fault
            if self._draining:
                return _failed(job, self._run, _DRAINED)
            alive = [member for member in self._members.values() if member.alive]
            if not alive:
                # All have ended, and others are being started.
                await asyncio.sleep(_TICK_S / 10)
                continue
            member = min(alive, key=lambda member: member.load(agent))
            played = await member.play(job)
            if played is not None:
                return played
            # That was no attempt.

    def drain(self) -> None:
        self._draining = True
        for member in self._members.values():
            member.drain()

    def pressure(self) -> Pressure:
        return together([self._past, *(member.pressure for member in self._members.values())])

    # As its own admission: each worker says how much it takes, and what is bounded for all of them is counted here.

    @property
    def admission(self) -> Self:
        return self

    def room(self, agent: str) -> bool:
        if self._fault is not None:
            # Whoever plays next hears of it.
            return True
        if self._entered[agent] >= self._bounds.get(agent, sys.maxsize):
            return False
        return sum(member.takes(agent) for member in self._members.values()) > self._coming[agent]

    def enter(self, agent: str) -> None:
        self._entered[agent] += 1
        self._coming[agent] += 1

    def leave(self, agent: str) -> None:
        self._entered[agent] -= 1
        if agent in self._bounds:
            self._freed.set()

    async def changed(self) -> None:
        await self._freed.wait()
        # Afterwards: what was freed between the caller's look and this wait must not be forgotten.
        self._freed.clear()

    # Watching over them.

    async def _man(self, place: int) -> None:
        """Start a worker. One that is killed before it is ready is replaced."""
        for _ in range(_MOST_DEATHS):
            member = Member(self._parts[place], self._freed.set, self._profile)
            try:
                await member.start()
            except Died as died:
                self._say(f"A worker process ended while it started ({told(died.code)}); another is started")
            else:
                self._members[place] = member
                self._freed.set()
                return
        raise RunError(f"{_MOST_DEATHS} worker processes ended one after the other while they started")

    async def _keep(self, place: int) -> None:
        try:
            await self._keep_manned(place)
        except Exception as error:  # noqa: BLE001
            self._stop(error)

    async def _keep_manned(self, place: int) -> None:
        deaths, ended_before = 0, 0
        while True:
            member = self._members[place]
            code = await member.watched(self._silent_s, self._say)
            if member.fault is not None:
                raise member.fault
            if self._draining:
                return
            # Whoever gets on, also beside it, is no reason to give up.
            ended = self._ended + sum(one.ended for one in self._members.values())
            deaths = 1 if ended > ended_before else deaths + 1
            ended_before = ended
            self._say(f"A worker process ended ({told(code)}); its slots are played again by another")
            if deaths >= _MOST_DEATHS:
                raise RunError(f"{deaths} worker processes ended one after the other without one rollout between")
            self._bury(place)
            if not await self._man_again(place):
                return

    def _bury(self, place: int) -> None:
        """What it went through still counts."""
        member = self._members.pop(place)
        self._ended += member.ended
        self._past += msgspec.structs.replace(member.pressure, calls=0, limit=0, waiting=0, paused="", workers=0)

    async def _man_again(self, place: int) -> bool:
        """False where nobody is needed any more.

        What could be started once can be again: a model's server may be away for a while, as it may for those who play.
        """
        until = time.monotonic() + self._outage_s
        while not self._draining:
            try:
                await self._man(place)
            except CallerError as error:
                if time.monotonic() > until:
                    raise
                self._say(f"A worker could not be started, and will be again: {error}")
                await asyncio.sleep(_TICK_S)
            else:
                return True
        return False

    def _stop(self, error: Exception) -> None:
        self._fault = self._fault or error
        self._freed.set()


_ORPHANED = Failure("infrastructure", "worker_died", "the process that played it ended", retryable=True)
_DRAINED = Failure("infrastructure", "drained", "the run was stopped before it began")


def _failed(job: Job, run: str, failure: Failure) -> Played:
    return Played(Entry(slot=job.slot, stop="failed", failure=failure, attempt=job.attempt, run=run))


def kill_group(number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def told(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
