"""The program of a worker process: leases come in, ended rollouts go out, and it dies with the command."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections import deque
from contextlib import suppress

from rollmill import plugins
from rollmill.collection.worker import Job, Played
from rollmill.engines.channel import Channel
from rollmill.engines.messages import Beat, Begin, Credit, Drain, Ended, Fault, Lease, Ready, read_order
from rollmill.errors import ConfigError, ContractError, OutageError, RollmillError, describe
from rollmill.launch import Setup, assemble, environment_instance
from rollmill.local import LocalWorker
from rollmill.store.schema import Entry
from rollmill.types import Failure, Task, read_task

AHEAD = 32
"""How many leases wait at most, so that a place that is free is taken at once."""
_BEAT_S = 1.0
_PR_SET_PDEATHSIG = 1


class Program:
    """Plays what is leased, as much at once as its own admission allows."""

    def __init__(self, setup: Setup, worker: LocalWorker, channel: Channel) -> None:
        self._instances = setup.instances
        self._worker, self._admission = worker, worker.admission
        self._channel = channel
        self._waiting: deque[Lease] = deque()
        self._arrived = asyncio.Event()
        self._draining = False
        self._kinds: dict[str, type[Task]] = {}
        self._playing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self._channel.send(Credit(AHEAD))
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                if not self._waiting:
                    self._arrived.clear()
                    await self._arrived.wait()
                elif self._admission.room(self._waiting[0].slot.agent):
                    self._start(self._waiting.popleft())
                else:
                    await self._admission.changed()
        finally:
            beating.cancel()

    def lease(self, lease: Lease) -> None:
        if self._draining:
            self._give_back(lease)
            return
        self._waiting.append(lease)
        self._arrived.set()

    def drain(self) -> None:
        self._draining = True
        self._worker.drain()
        while self._waiting:
            self._give_back(self._waiting.popleft())

    def _start(self, lease: Lease) -> None:
        self._admission.enter(lease.slot.agent)
        self._channel.send(Credit(1))
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
        except RollmillError as error:
            self._channel.send(fault_of(error))
        except Exception as error:  # noqa: BLE001
            self._channel.send(Fault("error", describe(error)))
        finally:
            self._admission.leave(lease.slot.agent)

    def _answer(self, lease: Lease, played: Played) -> None:
        self._channel.send(Ended(lease.number, played.entry, played.row, bytes(played.response)))

    def _give_back(self, lease: Lease) -> None:
        failure = Failure("infrastructure", "drained", "the run was stopped before it began")
        entry = Entry(slot=lease.slot, stop="failed", failure=failure, attempt=lease.attempt)
        self._answer(lease, Played(entry))

    def _kind(self, agent: str) -> type[Task]:
        if agent not in self._kinds:
            environment = environment_instance(self._instances, self._instances[agent])
            self._kinds[agent] = plugins.environment(environment.implementation).task_type
        return self._kinds[agent]

    async def _beat(self) -> None:
        while True:
            used = resource.getrusage(resource.RUSAGE_SELF)
            self._channel.send(Beat(self._worker.pressure(), used.ru_utime + used.ru_stime))
            await asyncio.sleep(_BEAT_S)


def fault_of(error: RollmillError) -> Fault:
    match error:
        case ConfigError():
            return Fault("config", str(error))
        case ContractError():
            return Fault("contract", str(error))
        case OutageError():
            return Fault("outage", str(error))
    return Fault("error", str(error))


async def serve(descriptor: int) -> None:
    """Until the command closes its end."""
    loop = asyncio.get_running_loop()
    begin: asyncio.Future[Begin] = loop.create_future()
    gone = asyncio.Event()
    program: Program | None = None

    def heard(message: bytes) -> None:
        match read_order(message):
            case Begin() as order:
                begin.set_result(order)
            case Lease() as lease if program is not None:
                program.lease(lease)
            case Drain() if program is not None:
                program.drain()

    connection = socket.socket(fileno=descriptor)
    _, channel = await loop.create_connection(lambda: Channel(heard, gone.set), sock=connection)
    order = await begin
    sys.path[:] = order.path
    try:
        async with assemble(order.setup) as worker:
            program = Program(order.setup, worker, channel)
            channel.send(Ready())
            running = asyncio.create_task(program.run())
            await gone.wait()
            running.cancel()
            await asyncio.wait([running])
    except RollmillError as error:
        channel.send(fault_of(error))
        channel.close()
        await gone.wait()


def die_with(pipe: int) -> None:
    """End when the other end of a pipe is closed, whatever this process is doing; where the kernel can, at once."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, name="death pipe", daemon=True).start()


def main() -> None:
    descriptor, pipe = int(sys.argv[1]), int(sys.argv[2])
    die_with(pipe)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    # Ctrl-C is the command's to hear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(descriptor))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(descriptor))


if __name__ == "__main__":
    main()
