"""The program of a process that computes rewards: a job a line comes in, an answer a line goes out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Raw, Struct

from rollmill.environment import Environment
from rollmill.types import Task, Trajectory, decode, encode, read_item, read_task

IN_WORKER = "ROLLMILL_REWARD_WORKER"
"""Set in the environment of such a process."""


class Job(Struct):
    """What crosses to the process: JSON only, so that no live object and no pickle does."""

    module: str
    file: str | None
    environment: str
    reward: str
    task: Raw
    prompt: list[Raw]
    items: list[Raw]
    snapshot: Any
    path: list[str]
    only_load: bool = False


class Answer(Struct):
    value: float | None = None
    error: str | None = None


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
            value = function(read_task(bytes(job.task), kind), trajectory, job.snapshot)
        except Exception as error:  # noqa: BLE001
            return Answer(error=traceback.format_exception_only(error)[-1].strip())
        if not isinstance(value, int | float):
            return Answer(error=f"returned {type(value).__name__}; a reward is a number or a truth value")
        return Answer(value=float(value))

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


def _module(name: str, file: str | None) -> ModuleType:
    if name != "__main__" and name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]):
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


def main() -> None:
    # Answers leave by a descriptor of their own: what a reward prints must not be read as one.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    worker = Worker()
    for line in sys.stdin.buffer:
        answers.write(encode(worker.run(decode(line, type=Job))) + b"\n")


if __name__ == "__main__":
    main()
