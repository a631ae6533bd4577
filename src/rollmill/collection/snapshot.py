"""What a run is doing at a moment, in a file that another terminal reads."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from rollmill.files import write_whole

NAME = "status.json"


class Oldest(Struct, frozen=True):
    """The rollout that has been playing the longest."""

    task_index: int
    rollout_index: int
    agent: str
    attempt: int
    seconds: float


class Snapshot(Struct, frozen=True):
    state: str
    """running, draining, finished, or why it stopped."""
    at: str
    run: str
    pid: int
    host: str
    elapsed_s: float
    planned: int | None = None
    """None until the input has been read or counted, and for as long as it is followed."""
    held: int = 0
    """Slots that had ended before this run."""
    ended: int = 0
    failed: int = 0
    """Of the ended."""
    running: int = 0
    most_running: int = 0
    """The most that ran at once."""
    oldest: Oldest | None = None
    follows: bool = False
    """Whether more rows may come."""
    waited_s: float | None = None
    """How long there has been nothing to play, where rows are waited for."""
    rollouts_per_s: float = 0.0
    rollouts_per_s_overall: float = 0.0
    tokens_per_s: float = 0.0
    tokens_per_s_overall: float = 0.0
    eta_s: float | None = None
    model_calls: int = 0
    model_limit: int | None = None
    waiting_calls: int = 0
    retries: dict[str, int] = {}
    paused: str = ""
    reward_mean: float | None = None
    reward_std: float | None = None
    rewarded: int = 0
    seconds: dict[str, float] = {}
    """Seconds a rollout of this run, by stage."""
    cpu_share: float = 0.0
    """How much of one core the command's own process takes."""
    workers: int = 0
    """Processes that play beside it, and how much of a core each of them takes."""
    workers_cpu_share: float = 0.0
    memory_mb: float = 0.0
    loop_lag_ms: float = 0.0
    """The longest that the event loop was late in the last seconds."""
    bottleneck: str = ""
    warnings: list[str] = []
    durability: str = "os"

    @property
    def done(self) -> int:
        return self.held + self.ended


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    write_whole(folder / NAME, msgspec.json.encode(snapshot) + b"\n")


def read_snapshot(folder: Path) -> Snapshot | None:
    """The last that was written, if there is one of this version."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Snapshot)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
