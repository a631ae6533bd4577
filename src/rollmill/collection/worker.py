"""What plays: the collector knows workers by these messages alone."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw, Struct

from rollmill.store.schema import Entry
from rollmill.types import Rollout, Slot, Task


class Job(Struct, frozen=True):
    """One attempt at one slot."""

    slot: Slot
    task: Task
    attempt: int = 1


class Played(Struct, frozen=True):
    """One attempt, ready to be recorded."""

    entry: Entry
    row: bytes = b""
    """The line of the output, where it was rewarded."""
    response: Raw = Raw(b"null")
    """What had happened, where it failed."""
    rollout: Rollout | None = None
    """The record itself, where it was played in this process."""


class Worker(Protocol):
    """Plays whole rollouts, many at once."""

    async def play(self, job: Job) -> Played: ...

    def drain(self) -> None:
        """Give up what only waits to try again: its failure is of the kind `drained`, and the slot is owed."""
