"""The program of a process that serves instances; it ends when the command does, however that ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from contextlib import AbstractContextManager, AsyncExitStack

from rollmill.config.secrets import mask_text
from rollmill.cores import allow_many_files
from rollmill.engines.channel import Channel
from rollmill.engines.program import LINE, run_beside_the_command
from rollmill.errors import CallerError, describe
from rollmill.model import Secret
from rollmill.profiling.profiler import Profiler
from rollmill.serve.guard import Guard
from rollmill.serve.listen import Listener
from rollmill.services.hosting import Hosting, unanswering
from rollmill.services.messages import Fault, Notice, Place, Ready, Serve, Stop, read_order
from rollmill.services.profiled import profiled, stats

_LOOK_AGAIN_S = 2.0


class Server:
    """One connection to the command: first comes what to serve, then the word to stop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._order: asyncio.Future[Serve] = loop.create_future()
        self._stopping = asyncio.Event()

    async def run(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        connection = socket.socket(fileno=descriptor)
        _, channel = await loop.create_connection(lambda: Channel(self._heard, self._stopping.set), sock=connection)
        serving, stopping = asyncio.create_task(self._serve(channel)), asyncio.create_task(self._stopping.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self._order.done():
            serving.cancel()
        await asyncio.wait([serving])
        channel.close()

    async def _serve(self, channel: Channel) -> None:
        order = await self._order
        # Behind its own: what a virtual environment has comes first.
        sys.path += [path for path in order.path if path not in sys.path]
        for handler in logging.getLogger().handlers:
            # Not the logger: it filters what is logged there, and not what comes from others.
            handler.setFormatter(_Hiding(order.secrets))
        try:
            async with AsyncExitStack() as stack:
                profiler = stack.enter_context(_profiled(order))
                hosting = Hosting(
                    order.setup,
                    stack,
                    secrets=order.secrets,
                    idle_s=order.idle_s,
                    worker=order.worker,
                    profile=profiler,
                )
                await hosting.open()
                await self._open(order, hosting, stack, channel, profiler)
                if not order.dry:
                    await self._stopping.wait()
        except (Exception, SystemExit) as error:  # noqa: BLE001
            channel.send(_fault(error))

    async def _open(
        self, order: Serve, hosting: Hosting, stack: AsyncExitStack, channel: Channel, profiler: Profiler | None
    ) -> None:
        token = Secret(order.setup.access_token) if order.setup.access_token else None
        for place in order.places:
            app = await hosting.service(place.name, Guard(place.host, token, tuple(order.names)), place.siblings)
            if profiler is not None:
                app.add(stats(profiler))
            if not order.dry:
                await stack.enter_async_context(Listener(app, _sockets(place)))
        if order.dry:
            channel.send(Ready())
            return
        watching = asyncio.create_task(_watch_models(hosting, channel, order.wait_s))
        stack.callback(watching.cancel)

    def _heard(self, message: bytes) -> None:
        match read_order(message):
            case Serve() as order:
                self._order.set_result(order)
            case Stop():
                self._stopping.set()


def _profiled(order: Serve) -> AbstractContextManager[Profiler | None]:
    # Where profiles are made, each instance has processes of its own.
    instance = order.setup.instances[order.places[0].name]
    worker = f".{order.worker}" if order.places[0].siblings or order.worker else ""
    return profiled(instance, order.profiles, worker=worker, required_str=order.required_str)


def _sockets(place: Place) -> list[socket.socket]:
    return [socket.socket(fileno=one) for one in (place.descriptor, place.private) if one >= 0]


async def _watch_models(hosting: Hosting, channel: Channel, wait_s: float) -> None:
    """Say that all is ready, and of which models nothing is heard; with `wait_s`, when they answer or it is over."""
    until = time.monotonic() + wait_s
    said: dict[str, str] = {}
    ready = False
    while True:
        found = await unanswering(hosting.endpoints)
        for name in found.keys() | said.keys():
            if found.get(name, "") != said.get(name, ""):
                channel.send(Notice(name, found.get(name, "")))
        said = found
        if not ready and (not found or time.monotonic() >= until):
            channel.send(Ready())
            ready = True
        if ready and not found:
            return
        await asyncio.sleep(_LOOK_AGAIN_S)


class _Hiding(logging.Formatter):
    """Takes secrets out of what is logged, tracebacks included."""

    def __init__(self, secrets: list[str]) -> None:
        super().__init__(LINE)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record), self._secrets)


def _fault(error: BaseException) -> Fault:
    if isinstance(error, CallerError):
        return Fault("config", str(error))
    return Fault("error", describe(error))


async def serve(descriptor: int) -> None:
    await Server().run(descriptor)


if __name__ == "__main__":
    allow_many_files()
    run_beside_the_command(serve)
