"""The program of a worker process: leases come in, ended rollouts go out, and it dies with the command."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import chain
from subprocess import DEVNULL
from typing import Any

import msgspec

from rollmill.collection.streams import outlive_readers
from rollmill.collection.worker import Job, Played
from rollmill.engines.channel import Channel
from rollmill.engines.messages import Beat, Begin, Credit, Drain, Ended, Fault, Finish, Lease, Ready, Told, read_order
from rollmill.errors import CallerError, ContractError, OutageError, RollmillError, describe
from rollmill.instances import environment_of, known_kind
from rollmill.launch import Setup, assemble
from rollmill.local import LocalWorker
from rollmill.profiling.profile import Profile
from rollmill.store.schema import Entry
from rollmill.types import Failure, Task, read_task

AHEAD = 32
"""How many leases of an agent wait at most, so that a place that is free is taken at once."""
LINE = "%(levelname)s %(name)s: %(message)s"
_BEAT_S = 1.0
_PR_SET_PDEATHSIG = 1
_END_THE_GROUP = "trap '' HUP INT TERM; read -r _; kill -9 0"


class Program:
    """Plays what is leased, as much at once as its own admission allows."""

    def __init__(self, setup: Setup, worker: LocalWorker, channel: Channel) -> None:
        self._instances, self._elsewhere, self._run = setup.instances, setup.addresses, setup.run
        self._worker, self._admission = worker, worker.admission
        self._channel = channel
        self._waiting: dict[str, deque[Lease]] = {}
        self._woken = asyncio.Event()
        self._draining = self._stopped = False
        self._kinds: dict[str, type[Task]] = {}
        self._playing: set[asyncio.Task[None]] = set()
        self._unanswered = 0

    async def run(self) -> None:
        """Until `stop`: what is being played then is cancelled."""
        beside = [asyncio.create_task(one) for one in (self._beat(), self._heed_places())]
        try:
            while not self._stopped:
                if (lease := self._next()) is not None:
                    self._start(lease)
                    continue
                self._woken.clear()
                await self._woken.wait()
        finally:
            ending = [*beside, *self._playing]
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)

    def lease(self, lease: Lease) -> None:
        self._unanswered += 1
        if self._draining:
            self._give_back(lease)
            return
        self._waiting.setdefault(lease.slot.agent, deque()).append(lease)
        self._woken.set()

    def drain(self) -> None:
        self._draining = True
        self._worker.drain()
        waiting = list(chain.from_iterable(self._waiting.values()))
        self._waiting.clear()
        for lease in waiting:
            self._give_back(lease)

    def stop(self) -> None:
        self._stopped = True
        self._woken.set()

    def _next(self) -> Lease | None:
        """Agents take turns, and one that has no room does not hold up the others."""
        for agent, waiting in self._waiting.items():
            if waiting and self._admission.room(agent):
                self._waiting[agent] = self._waiting.pop(agent)
                return waiting.popleft()
        return None

    async def _heed_places(self) -> None:
        while True:
            await self._admission.changed()
            self._woken.set()

    def _start(self, lease: Lease) -> None:
        self._admission.enter(lease.slot.agent)
        # Said before it is played: should that be the end of this process, it counts as an attempt.
        self._channel.send(Credit(lease.number))
        task = asyncio.create_task(self._play(lease))
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)

    async def _play(self, lease: Lease) -> None:
        try:
            task = read_task(lease.row, self._kind(lease.slot.agent))
            # The overrides are in the row, and the slot is planned under the identity from before.
            task.__dict__["identity"] = lease.slot.task
            played = await self._worker.play(Job(lease.slot, task, lease.attempt))
            self._answer(lease, played)
        except Exception as error:  # noqa: BLE001
            self._unanswered -= 1
            self._channel.send(fault_of(error, lease.number))
        finally:
            self._admission.leave(lease.slot.agent)

    def _answer(self, lease: Lease, played: Played) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            # It may be the last word of the run, and what the calls went through is counted.
            self._tell()
        self._channel.send(Ended(lease.number, played.entry, played.row, bytes(played.response)))

    def _give_back(self, lease: Lease) -> None:
        failure = Failure("infrastructure", "drained", "the run was stopped before it began")
        entry = Entry(slot=lease.slot, stop="failed", failure=failure, attempt=lease.attempt, run=self._run)
        self._answer(lease, Played(entry))

    def _kind(self, agent: str) -> type[Task]:
        if agent not in self._kinds:
            kind = known_kind(environment_of(self._instances, self._instances[agent]), self._elsewhere)
            self._kinds[agent] = kind.task_type if kind else Task
        return self._kinds[agent]

    async def _beat(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(_BEAT_S)

    def _tell(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        pressure = msgspec.structs.replace(
            self._worker.pressure(), workers=1, workers_cpu_s=used.ru_utime + used.ru_stime
        )
        self._channel.send(Beat(pressure))


def fault_of(error: Exception, number: int = 0) -> Fault:
    match error:
        case ContractError():
            return Fault("contract", str(error), number)
        case CallerError():
            return Fault("config", str(error), number)
        case OutageError():
            return Fault("outage", str(error), number)
        case RollmillError():
            return Fault("error", str(error), number)
    return Fault("error", describe(error), number)


class Service:
    """One connection to the command: what to get ready comes first, then the leases."""

    def __init__(self) -> None:
        self._begin: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
        self._over, self._gone = asyncio.Event(), asyncio.Event()
        self._program: Program | None = None

    async def serve(self, descriptor: int) -> None:
        """Until the command says that it is over, or closes its end, or nothing can be played."""
        loop = asyncio.get_running_loop()
        connection = socket.socket(fileno=descriptor)
        _, channel = await loop.create_connection(lambda: Channel(self._heard, self._lost), sock=connection)
        work, over = asyncio.create_task(self._work(channel)), asyncio.create_task(self._over.wait())
        await asyncio.wait((work, over), return_when=asyncio.FIRST_COMPLETED)
        if self._program is None:
            work.cancel()
        else:
            # Not cancelled: what environments hold is closed as at any other end.
            self._program.stop()
        await asyncio.wait([work])
        channel.close()
        await self._gone.wait()
        await over

    async def _work(self, channel: Channel) -> None:
        order = await self._begin
        sys.path[:] = order.path
        profile = Profile() if order.profile else None
        if profile is not None:
            profile.start()
        try:
            async with assemble(order.setup, profile) as worker:
                self._program = Program(order.setup, worker, channel)
                channel.send(Ready(AHEAD))
                await self._program.run()
        except Exception as error:  # noqa: BLE001
            channel.send(fault_of(error))
        if profile is not None:
            channel.send(Told(profile.measured()))

    def _lost(self) -> None:
        self._over.set()
        self._gone.set()

    def _heard(self, message: bytes) -> None:
        match read_order(message):
            case Begin() as order:
                self._begin.set_result(order)
            case Lease() as lease if self._program is not None:
                self._program.lease(lease)
            case Drain() if self._program is not None:
                self._program.drain()
            case Finish():
                self._over.set()


def die_with(pipe: int) -> None:
    """End when the other end of a pipe is closed, whatever this process is doing; where the kernel can, at once.

    This process leads its group, and everything in that ends with it.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Another process, for the kernel leaves this one no time.
    command = ("/bin/sh", "-c", _END_THE_GROUP)
    heir = subprocess.Popen(command, stdin=pipe, stdout=DEVNULL, stderr=DEVNULL)  # noqa: S603 - its words are ours

    def wait(_: subprocess.Popen[bytes]) -> None:
        os.read(pipe, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, args=(heir,), name="death pipe", daemon=True).start()


def leave_signals_to_the_command() -> None:
    """A scheduler sends them to every process of a job, and the command drains first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A function, for what is ignored would be ignored by everything that an environment starts.
        signal.signal(number, lambda *_: None)


async def serve(descriptor: int) -> None:
    await Service().serve(descriptor)


def run_beside_the_command(serve: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """The main part of a process that a command has started, and which ends with it.

    The arguments are two inherited descriptors: of the socket to the command, which `serve` gets, and of a pipe that
    ends when the command does.
    """
    descriptor, pipe = int(sys.argv[1]), int(sys.argv[2])
    for inherited in (descriptor, pipe):
        # What an environment starts would hold the connection open after this process has died.
        os.set_inheritable(inherited, False)
    die_with(pipe)
    leave_signals_to_the_command()
    outlive_readers()
    logging.basicConfig(format=LINE, level=logging.WARNING)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(descriptor))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(descriptor))


if __name__ == "__main__":
    run_beside_the_command(serve)
