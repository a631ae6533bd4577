"""What can go wrong, in three families.

RollmillError
├── CallerError          the caller is wrong: the command stops with this one line
│   ├── ConfigError      a file, a key, a value or a name
│   └── ContractError    a model, agent or environment that does not keep its contract
├── RolloutError         one rollout failed: it is recorded with its address, and the run goes on
│   └── ModelError       a model call failed
├── ToolError            a tool's message to the model: the rollout goes on
└── RunError             the run cannot go on: it stops loudly, and what was recorded is safe
    ├── StoreError       what it does cannot be recorded
    ├── OutageError      no model call has succeeded for a while
    └── ServiceError     a service has ended, or never answered

Authors of environments and agents raise ordinary exceptions; `boundary` says once where they came from.
A new exception belongs to one of these families and can be pickled.
"""

from __future__ import annotations

import asyncio
import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal

from rollmill.types import Failure, Where


class RollmillError(Exception):
    """The root of all that this package raises on purpose."""


class CallerError(RollmillError):
    """The caller is wrong; the message says what to change."""


class ConfigError(CallerError):
    """A file, key, value or name in what was asked for."""


class ContractError(CallerError):
    """A plugin that does not keep its contract."""


class ToolError(RollmillError):
    """Raised in a tool, its message is the tool's answer to the model."""


class RunError(RollmillError):
    """The run cannot go on."""


class StoreError(RunError):
    """A rollout could not be recorded."""


class OutageError(RunError):
    """No model call has succeeded for a while: the model is gone, for everybody."""


class ServiceError(RunError):
    """A service has ended, or never answered. Nothing is recorded by who serves."""


class RolloutError(RollmillError):
    """One rollout failed; `failure` says where and why."""

    def __init__(self, failure: Failure | str) -> None:
        # `args` stays what it was made of, so that it can be copied and pickled.
        self.failure = failure if isinstance(failure, Failure) else Failure("infrastructure", "error", failure)

    def __str__(self) -> str:
        return f"{self.failure.where}: {self.failure.detail}"


ModelFault = Literal[
    "caller",  # this request is wrong, and would be again
    "denied",  # the key, the model's name or the quota: every request will be refused
    "rate_limit",
    "overload",
    "transport",
    "timeout",
    "malformed",
]
_FINAL = ("caller", "denied")


class ModelError(RolloutError):
    """A model call failed: whose fault it was, and after how long another try can help."""

    def __init__(self, kind: ModelFault, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(Failure("model", kind, detail, retryable=kind not in _FINAL, retry_after_s=retry_after_s))


def boundary(where: Where) -> Boundary:
    """Give an exception that crosses here its address, unless it has one. Cancellation of the task passes."""
    return Boundary(where)


class Boundary:
    # Not a generator's context manager: several are crossed in every turn.
    __slots__ = ("_where",)

    def __init__(self, where: Where) -> None:
        self._where: Where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, CallerError | RolloutError | RunError):
            return
        if isinstance(error, asyncio.CancelledError):
            # Where nobody cancelled this task, something that it waited for was: an error like any other.
            if not _cancelled():
                raise RolloutError(Failure(self._where, "error", describe(error))) from error
        elif isinstance(error, TimeoutError):
            raise RolloutError(Failure(self._where, "timeout", describe(error), retryable=True)) from error
        elif isinstance(error, Exception | SystemExit):
            # An author's sys.exit() ends a rollout, not the run.
            raise RolloutError(Failure(self._where, "error", describe(error))) from error


def _cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0


def describe(error: BaseException) -> str:
    """An exception in one line, with the place where it was raised."""
    text = " ".join(str(error).split()) or "no message"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` for a near miss, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f'; did you mean "{near[0]}"?' if near else ""
