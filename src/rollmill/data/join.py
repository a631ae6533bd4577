"""Rollouts of any origin made one file, and what they come to beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from rollmill.data.concatenation import Concatenation
from rollmill.data.rollouts import UNREADABLE, Row
from rollmill.data.samples import Samples, samples_in
from rollmill.data.scratch import scratch
from rollmill.data.written import write_lines
from rollmill.errors import ConfigError
from rollmill.quality.aggregate import Of, group_rows, write
from rollmill.quality.tally import Tally
from rollmill.store.folder import ENDINGS
from rollmill.store.schema import is_json, read_summary
from rollmill.store.streamed import replacing
from rollmill.taskset import read_rows


class Joined(Struct, frozen=True):
    rollouts: int
    moved: int
    """Rows that had indices of others, and got new ones."""


def are_ours(files: Iterable[Path]) -> bool:
    """Whether every row is one that a collection wrote; what a crash left says nothing."""
    return all(path.name.endswith(ENDINGS) and all(map(_is_ours, _readable(path))) for path in files)


def join(files: Iterable[Path], metrics: Path, out: Path | None = None) -> Joined:
    """Write the metrics of all rows, and the rows themselves, in their order, to `out`."""
    rows = Concatenation(files)
    tallies: dict[str, Tally] = {}
    with scratch(metrics) as folder, samples_in(folder) as samples:
        counted = _counted(rows, tallies, samples)
        if out is not None:
            write_lines(out, folder, counted)
        # Whatever nobody writes has to be counted all the same.
        deque(counted, maxlen=0)
        with replacing(metrics, folder) as file:
            _write_metrics(file, tallies, samples)
    return Joined(sum(map(len, tallies.values())), rows.moved)


def _readable(path: Path) -> Iterator[bytes]:
    with suppress(ConfigError):
        yield from (content for _, content in read_rows(path))


def _is_ours(content: bytes) -> bool:
    try:
        read_summary(content)
    except UNREADABLE:
        return not is_json(content)
    return True


def _counted(rows: Iterable[Row], tallies: dict[str, Tally], samples: Samples) -> Iterator[bytes]:
    """The rows' lines. Raises `ConfigError` in the end if there was none."""
    for row in rows:
        tallies.setdefault(row.agent, Tally()).add(row.task_index, row.rollout_index, row.counted)
        samples.offer(row.task_index, row.agent, row.rollout_index, row.given)
        yield row.content.rstrip(b"\r\n") + b"\n"
    if not tallies:
        raise ConfigError("there is no rollout in these files")


def _write_metrics(file: BinaryIO, tallies: dict[str, Tally], samples: Samples) -> None:
    agents = (Of(agent, tally.metrics(), _groups(agent, tally, samples)) for agent, tally in sorted(tallies.items()))
    tasks = sum(tally.tasks for tally in tallies.values())
    write(file, agents, tasks=tasks, slots=sum(map(len, tallies.values())))


def _groups(agent: str, tally: Tally, samples: Samples) -> Iterator[dict[str, Any]]:
    for group in group_rows(tally):
        yield group | {"sample": samples.of(group["_ng_task_index"], agent)}
