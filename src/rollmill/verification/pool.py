"""Rewards that compute, in warm processes: each has a deadline, and a process that misses it is killed and replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Raw

from rollmill.cores import usable_cores
from rollmill.environment import RewardPart
from rollmill.errors import ContractError, RolloutError
from rollmill.profiling.profile import Profile
from rollmill.profiling.spans import FOR_A_PROCESS
from rollmill.types import Failure, Spans, Task, Trajectory, encode
from rollmill.verification.worker import IN_WORKER, PROFILED, Answer, Job, Tell

_LONGEST_LINE = 64 * 2**20
_LOAD_S = 60.0
_LAST_WORDS_S = 1.0


class RewardPool:
    """Runs rewards declared with `cpu=True`. Enter it; its processes start when they are first needed."""

    def __init__(self, size: int | None = None, profile: Profile | None = None) -> None:
        """With a `profile` its processes measure themselves, and tell it."""
        self._size = size or max(1, usable_cores() - 1)
        self._profile = profile
        # Last in, first out: a process that is warm is used before one that is yet to be started.
        self._idle: asyncio.LifoQueue[Process | None] = asyncio.LifoQueue()
        self._loaded: dict[Process, set[RewardPart]] = {}

    async def __aenter__(self) -> Self:
        if IN_WORKER in os.environ:
            # The worker has imported the script that started it, and the script starts another, and so on.
            raise ContractError(
                "this script runs when it is imported: put what it does under `if __name__ == '__main__':`"
            )
        for _ in range(self._size):
            self._idle.put_nowait(None)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._profile is not None:
            await self._hear_the_last()
        for process in list(self._loaded):
            await self._kill(process)

    async def __call__(self, part: RewardPart, task: Task, trajectory: Trajectory, snapshot: Any) -> float:
        job = _job(part, task, trajectory, snapshot)
        process = await self._place(trajectory.spans)
        try:
            if process is not None and process.returncode is not None:
                await self._kill(process)
                process = None
            process = process or await self._start()
            await self._load(process, part, job)
            # The deadline is the computation's own: waiting for a process, or for its imports, does not count.
            async with asyncio.timeout(part.timeout_s):
                answer = await self._ask(process, job)
        except TimeoutError:
            await self._kill(process)
            detail = f"{part.name} computed for longer than {part.timeout_s:g} s and was killed"
            raise RolloutError(Failure("verifier", "timeout", detail)) from None
        except (EOFError, OSError):
            code = await self._kill(process)
            raise RolloutError(Failure("verifier", "crash", f"{part.name}: its process ended with {code}")) from None
        except asyncio.CancelledError:
            # A late answer would be taken for the next job's.
            await self._kill(process)
            raise
        finally:
            alive = process is not None and process.returncode is None
            self._idle.put_nowait(process if alive else None)
        if answer.value is None:
            raise RolloutError(Failure("verifier", "error", f"{part.name}: {answer.error}"))
        return answer.value

    async def _place(self, spans: Spans | None) -> Process | None:
        began = 0.0 if spans is None else perf_counter()
        process = await self._idle.get()
        if spans is not None:
            spans.add("verify", perf_counter() - began, FOR_A_PROCESS)
        return process

    async def _start(self) -> Process:
        command = (sys.executable, "-m", "rollmill.verification.worker", *([PROFILED] if self._profile else []))
        # A session of its own, so that what it starts can be killed with it, and Ctrl-C reaches this process alone.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={**os.environ, IN_WORKER: "1"},
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        self._loaded[process] = set()
        return process

    async def _load(self, process: Process, part: RewardPart, job: Job) -> None:
        if part in self._loaded[process]:
            return
        try:
            async with asyncio.timeout(_LOAD_S):
                answer = await self._ask(process, msgspec.structs.replace(job, only_load=True))
        except TimeoutError:
            await self._kill(process)
            detail = f"{part.name}: its file took longer than {_LOAD_S:g} s to import"
            raise RolloutError(Failure("verifier", "timeout", detail)) from None
        if answer.error is not None:
            raise RolloutError(Failure("verifier", "error", f"{part.name}: {answer.error}"))
        self._loaded[process].add(part)

    async def _kill(self, process: Process | None) -> int | None:
        if process is None:
            return None
        if self._loaded.pop(process, None) is not None and self._profile is not None:
            self._profile.lose()
        return await _killed(process)

    async def _hear_the_last(self) -> None:
        """End the processes that compute nothing, with what they have measured."""
        while not self._idle.empty():
            process = self._idle.get_nowait()
            if process is None or process.returncode is not None:
                continue
            with suppress(TimeoutError, EOFError, OSError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._ask(process, Tell())
                del self._loaded[process]
                await _killed(process)

    async def _ask(self, process: Process, order: Job | Tell) -> Answer:
        if process.stdin is None or process.stdout is None:
            raise EOFError
        process.stdin.write(encode(order) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        answer = msgspec.json.decode(line, type=Answer)
        if answer.told is not None and self._profile is not None:
            self._profile.heard(process, answer.told)
        return answer


async def _killed(process: Process) -> int:
    # Also where it has ended: what it started may live on, in the group that bears its number.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


def _job(part: RewardPart, task: Task, trajectory: Trajectory, snapshot: Any) -> Job:
    owner = part.owner
    file = getattr(sys.modules[owner.__module__], "__file__", None)
    if "<locals>" in owner.__qualname__ or (owner.__module__ == "__main__" and file is None):
        raise ContractError(f"{owner.__name__}.{part.name}: a reward that computes needs a class at the top of a file")
    return Job(
        module=owner.__module__,
        file=file,
        environment=owner.__qualname__,
        reward=part.name,
        task=Raw(encode(task.fields)),
        prompt=[item.json for item in trajectory.prompt],
        items=[item.json for item in trajectory.items],
        usage=trajectory.usage,
        turns=trajectory.turns,
        tool_calls=trajectory.tool_calls,
        snapshot=snapshot,
        timeout_s=part.timeout_s,
        path=sys.path,
    )
