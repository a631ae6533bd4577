"""One process that serves: a host of instances of ours, or somebody's own program."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rollmill.config import Instance
from rollmill.engines.channel import Channel
from rollmill.engines.processes import kill_group, told
from rollmill.errors import ConfigError, ServiceError
from rollmill.services import keeper
from rollmill.services.layout import Group, Served
from rollmill.services.messages import Fault, Notice, Ready, Serve, Stop, read_report
from rollmill.services.output import LIMIT, Output

_END_S = 8.0
"""How long a process may take to close what it holds."""
_ANSWER_S = 2.0
_ASK_AGAIN_S = 0.1
_RUNNERS = {".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "sh", ".rb": "ruby", ".pl": "perl"}


class Member(ABC):
    """A process of a group. `start` returns when its services answer."""

    def __init__(self, group: Group, worker: int, output: Output) -> None:
        self.group, self.worker = group, worker
        self.name = group.name if group.workers == 1 else f"{group.name}.{worker}"
        self.output = output
        self.ended = asyncio.Event()
        self.code: int | None = None
        self.restarts = 0
        self.serving = False
        """Whether its services answer, as far as is known."""
        self._process: Process | None = None
        self._pipe = -1
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and not self.ended.is_set() else None

    @abstractmethod
    async def start(self, within_s: float) -> None:
        """Returns when its services answer. Raises `ConfigError` and `RunError` where they do not."""

    @abstractmethod
    def ask_to_end(self) -> None:
        """Begin the end."""

    async def end(self) -> None:
        """Leave nothing of it."""
        self.ask_to_end()
        if self._watching is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self.ended.wait()
        self._let_go()
        if self._process is not None and self._process.returncode is None:
            kill_group(self._process.pid)
        if self._watching is not None:
            await self._watching

    async def _spawn(self, words: Sequence[str], descriptors: Sequence[int], **options: object) -> Process:
        reading, self._pipe = os.pipe()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(word.replace("{pipe}", str(reading)) for word in words),
                stdout=PIPE,
                stderr=STDOUT,
                pass_fds=(*descriptors, reading),
                start_new_session=True,
                limit=LIMIT,
                **options,  # type: ignore[arg-type]
            )
        finally:
            os.close(reading)
        self._watching = asyncio.create_task(self._watch(process))
        return process

    async def _watch(self, process: Process) -> None:
        reading = asyncio.create_task(self.output.read(process.stdout)) if process.stdout else None
        self.code = await process.wait()
        # At once, while nobody else can have the number.
        kill_group(process.pid)
        if reading is not None:
            await asyncio.wait([reading], timeout=1.0)
            reading.cancel()
        self._let_go()
        self.serving = False
        self.ended.set()

    def _let_go(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def died(self) -> str:
        """How it ended, with the end of what it wrote."""
        tail = "".join(f"\n  {line}" for line in self.output.tail)
        written = f"; the end of its log:{tail}" if tail else ", without a word"
        return f"{self.name} has ended ({told(self.code or 0)}){written}"


class HostMember(Member):
    """Instances of ours in one process."""

    def __init__(
        self,
        group: Group,
        worker: int,
        output: Output,
        *,
        order: Callable[[int], Serve],
        sockets: Sequence[socket.socket],
        heard: Callable[[Notice], None],
        python: str = sys.executable,
    ) -> None:
        super().__init__(group, worker, output)
        self._order, self._sockets, self._told, self._python = order, sockets, heard, python
        self._ready = asyncio.Event()
        self._fault: Fault | None = None
        self._channel: Channel | None = None

    async def start(self, within_s: float) -> None:
        self._ready, self._fault, self.ended = asyncio.Event(), None, asyncio.Event()
        self.output.tail.clear()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            _, self._channel = await loop.create_connection(lambda: Channel(self._heard, self._lost), sock=ours)
            words = (self._python, "-P", "-m", "rollmill.services.program", str(theirs.fileno()), "{pipe}")
            descriptors = [theirs.fileno(), *(one.fileno() for one in self._sockets)]
            await self._spawn(words, descriptors, stdin=DEVNULL)
        self._channel.send(self._order(self.worker))
        waiting = [asyncio.ensure_future(one.wait()) for one in (self._ready, self.ended)]
        try:
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if not self._ready.is_set():
            raise self._why_not(within_s)
        self.serving = True

    def _why_not(self, within_s: float) -> Exception:
        match self._fault:
            case Fault("config", text):
                return ConfigError(text)
            case Fault(_, text):
                return ServiceError(f"{self.name}: {text}")
        return ServiceError(self.died() if self.ended.is_set() else f"{self.name} was not ready in {within_s:g} s")

    def ask_to_end(self) -> None:
        if self._channel is not None:
            self._channel.send(Stop())

    def _heard(self, message: bytes) -> None:
        match read_report(message):
            case Ready():
                self._ready.set()
            case Notice() as notice:
                self._told(notice)
            case Fault() as fault:
                self._fault = fault

    def _lost(self) -> None:
        self._channel = None


class ProgramMember(Member):
    """Somebody's own program, which serves on the host and the port that it is given."""

    def __init__(
        self,
        group: Group,
        file: Path,
        output: Output,
        *,
        served: Served,
        tree: str,
        given: Mapping[str, object],
        python: str = sys.executable,
    ) -> None:
        super().__init__(group, 0, output)
        self._file, self._served, self._tree, self._given = file, served, tree, given
        self._python = python

    async def start(self, within_s: float) -> None:
        self.ended = asyncio.Event()
        self.output.tail.clear()
        # It listens itself; until now the port was kept for it.
        self._served.close()
        program = _words(self._file, self._served.instance, self._python)
        words = (sys.executable, "-I", "-S", keeper.__file__, "{pipe}", *program)
        process = await self._spawn(words, (), stdin=PIPE, cwd=self._file.parent, env=self._environment())
        if process.stdin is not None:
            with suppress(ConnectionError):
                process.stdin.write(msgspec.json.encode(self._given))
                await process.stdin.drain()
            process.stdin.close()
        try:
            async with asyncio.timeout(within_s):
                while not await _answers(self._served):
                    if await _set_within(self.ended, _ASK_AGAIN_S):
                        break
        except TimeoutError:
            raise ServiceError(f"{self.name} did not answer at {self._served.url} in {within_s:g} s") from None
        if self.ended.is_set():
            raise ServiceError(self.died())
        self.serving = True

    def ask_to_end(self) -> None:
        self._let_go()

    def _environment(self) -> dict[str, str]:
        host, port = self._served.host, str(self._served.port)
        ours = {"HOST": host, "PORT": port, "ROLLMILL_HOST": host, "ROLLMILL_PORT": port}
        # By these NeMo Gym's own servers know what they are.
        theirs = {"NEMO_GYM_CONFIG_PATH": self.name, "NEMO_GYM_CONFIG_DICT": self._tree}
        return {**os.environ, **ours, **theirs}


def _words(file: Path, instance: Instance, python: str) -> list[str]:
    """What runs a program: its language's own runner, or itself."""
    if file.suffix == ".py":
        return [python, str(file)]
    runner = _RUNNERS.get(file.suffix)
    if runner is None:
        if not os.access(file, os.X_OK):
            raise ConfigError(f"{instance.at}.entrypoint: {file} is not executable, and of no language known here")
        return [str(file)]
    found = shutil.which(runner)
    if found is None:
        raise ConfigError(f"{instance.at}.entrypoint: {file.name} needs {runner}, which is not installed")
    return [found, str(file)]


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def _answers(served: Served) -> bool:
    """Whether anything answers there in HTTP, whatever it is."""
    host = served.url.removeprefix("http://").rpartition(":")[0].strip("[]")
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, served.port)
            try:
                writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{served.port}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readline()).startswith(b"HTTP/")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
