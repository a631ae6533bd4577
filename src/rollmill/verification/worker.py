"""The program of a process that computes rewards: a job a line comes in, an answer a line goes out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from msgspec import Raw, Struct

from rollmill.environment import Environment
from rollmill.errors import describe
from rollmill.profiling.profile import Measured, Profile
from rollmill.types import Task, Trajectory, Usage, decode, encode, number, read_item, read_task

IN_WORKER = "ROLLMILL_REWARD_WORKER"
"""Set in the environment of such a process."""
PROFILED = "--profile"
"""On its command line: it measures itself."""
_GRACE_S = 2.0
_TELL_S = 1.0


class Job(Struct, tag=True):
    """What crosses to the process: JSON only, so that no live object and no pickle does."""

    module: str
    file: str | None
    environment: str
    reward: str
    task: Raw
    prompt: list[Raw]
    items: list[Raw]
    usage: Usage
    turns: int
    tool_calls: int
    snapshot: Any
    timeout_s: float
    path: list[str]
    only_load: bool = False


class Tell(Struct, tag=True):
    """Say what you have measured; there is nothing to compute."""


class Answer(Struct):
    value: float | None = None
    error: str | None = None
    told: Measured | None = None
    """What the process has measured since it began, where it measures itself; not with every answer."""


class Worker:
    """Finds rewards by name, once, and runs them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], tuple[Callable[..., Any], type[Task]]] = {}

    def run(self, job: Job) -> Answer:
        try:
            function, kind = self._find(job)
            if job.only_load:
                return Answer()
            trajectory = Trajectory([read_item(raw) for raw in job.prompt])
            trajectory.items = [read_item(raw) for raw in job.items]
            trajectory.usage, trajectory.turns, trajectory.tool_calls = job.usage, job.turns, job.tool_calls
            with _outliving(job.timeout_s):
                value = function(read_task(bytes(job.task), kind), trajectory, job.snapshot)
            return Answer(value=number(job.reward, value))
        except Exception as error:  # noqa: BLE001
            return Answer(error=describe(error))

    def _find(self, job: Job) -> tuple[Callable[..., Any], type[Task]]:
        key = (job.module, job.environment, job.reward)
        if key not in self._found:
            sys.path[:] = job.path
            owner: Any = _module(job.module, job.file)
            for name in job.environment.split("."):
                owner = getattr(owner, name)
            if not issubclass(owner, Environment):
                raise TypeError(f"{job.environment} is no Environment")
            self._found[key] = owner.rewards[job.reward].function, owner.task_type
        return self._found[key]


def _importable(name: str, file: str | None) -> bool:
    """Whether a name means the same file here: `tests.x` may be somebody else's."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == file


def _module(name: str, file: str | None) -> ModuleType:
    if name != "__main__" and name not in sys.modules and _importable(name, file):
        return importlib.import_module(name)
    # A script, or a file named on the command line: loaded under its own name, so that its main part does not run.
    alias = name if name != "__main__" else f"rollmill_main_{Path(file or '').stem}"
    if alias not in sys.modules:
        spec = importlib.util.spec_from_file_location(alias, file or "")
        if spec is None or spec.loader is None:
            raise ImportError(f"{name} cannot be found by a process of its own")
        module = sys.modules[alias] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[alias]
            raise
    return sys.modules[alias]


@contextmanager
def _outliving(seconds: float) -> Iterator[None]:
    """The pool kills what misses its deadline. Where the pool was killed itself, the kernel does, a little later."""
    signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Teller:
    """Adds what this process has measured of itself to its answers: now and then, and when it is asked for it."""

    def __init__(self) -> None:
        self._profile = Profile()
        self._profile.start()
        self._told_at = perf_counter()

    def tell(self, answer: Answer, *, asked: bool) -> None:
        if asked or perf_counter() - self._told_at > _TELL_S:
            answer.told = self._profile.measured()
            self._told_at = perf_counter()


def main() -> None:
    # Jobs and answers have descriptors of their own: what a reward prints must not be read as an answer, and what it
    # starts must not read the next job.
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    with Path(os.devnull).open("r+b") as nowhere:
        os.dup2(nowhere.fileno(), 0)
        os.dup2(nowhere.fileno(), 1)
    worker, teller = Worker(), Teller() if PROFILED in sys.argv else None
    for line in jobs:
        order = decode(line, type=Job | Tell)
        answer = worker.run(order) if isinstance(order, Job) else Answer()
        if teller is not None:
            teller.tell(answer, asked=isinstance(order, Tell))
        answers.write(encode(answer) + b"\n")


if __name__ == "__main__":
    main()
