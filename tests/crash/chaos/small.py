"""A collection so small that something can be done to it at each of its operations on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.crash.chaos.trial import Trial
from tests.crash.command import Collect
from tests.crash.preload import Disk, Operation
from tests.crash.rows import errands, write_rows
from tests.crash.served import served

ROWS: list[dict[str, Any]] = errands(12)
CONCURRENCY = 3
SCRIPT: Mapping[str, Any] = {"turns": 1}
OUTPUTS = ("out.jsonl", "out.jsonl.zst")
WRITES = ("write", "pwrite")
"""What can be done by half."""


class Small:
    """A small collection on a disk of its own."""

    def __init__(
        self, folder: Path, url: str, output: str, *words: str, rows: int = len(ROWS), concurrency: int = CONCURRENCY
    ) -> None:
        self.rows = errands(rows)
        write_rows(folder / "rows.jsonl", self.rows)
        self.disk = Disk(folder / "disk", folder)
        self.collect = Collect(folder, url, *words, output=f"disk/{output}", concurrency=concurrency)


def operations(trial: Trial, part: str, output: str, *words: str, **more: int) -> list[Operation]:
    """What a run that nobody disturbs asks of the disk."""
    folder = trial.scratch(part, f"traced-{output}")
    with served(folder, **SCRIPT) as server:
        small = Small(folder, server.url, output, *words, **more)
        ended = small.collect.run(env=small.disk.traced())
    assert ended.code == 0, ended
    return small.disk.operations()
