"""What plays: the collector knows workers by these messages alone."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from rollmill.types import Rollout, Slot, Task


class Job(Struct, frozen=True):
    """One attempt at one slot."""

    slot: Slot
    task: Task
    attempt: int = 1


class Worker(Protocol):
    """Plays whole rollouts, many at once."""

    async def play(self, job: Job) -> Rollout: ...
