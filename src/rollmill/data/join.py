"""Rollouts of any origin made one file, and what they come to beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from msgspec import Struct

from rollmill.data.concatenation import Concatenation
from rollmill.data.rollouts import UNREADABLE, Row
from rollmill.data.samples import Samples, samples_in
from rollmill.data.scratch import scratch
from rollmill.errors import ConfigError
from rollmill.quality.aggregate import Of, group_rows, write
from rollmill.quality.tally import Tally
from rollmill.store.lines import is_compressed
from rollmill.store.schema import is_json, read_summary
from rollmill.store.streamed import replacing
from rollmill.taskset import read_rows

_FRAME_BYTES = 1 << 20


class Joined(Struct, frozen=True):
    rollouts: int
    moved: int
    """Rows that had indices of others, and got new ones."""


def are_ours(files: Iterable[Path]) -> bool:
    """Whether every row is one that a collection wrote; what is no JSON at all says nothing."""
    return all(_is_ours(content) for path in files for _, content in read_rows(path))


def join(files: Iterable[Path], metrics: Path, out: Path | None = None) -> Joined:
    """Write the metrics of all rows, and the rows themselves, in their order, to `out`."""
    rows = Concatenation(files)
    tallies: dict[str, Tally] = {}
    with scratch(metrics) as folder, samples_in(folder) as samples:
        counted = _counted(rows, tallies, samples)
        if out is None:
            _exhaust(counted)
        else:
            with replacing(out, folder) as file:
                _write_rows(file, counted, compressed=is_compressed(out))
        with replacing(metrics, folder) as file:
            _write_metrics(file, tallies, samples)
    return Joined(sum(map(len, tallies.values())), rows.moved)


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


def _exhaust(lines: Iterator[bytes]) -> None:
    for _ in lines:
        pass


def _write_rows(file: BinaryIO, lines: Iterator[bytes], *, compressed: bool) -> None:
    if not compressed:
        file.writelines(lines)
        return
    # Many frames, so that whoever wants one row need not have all of them.
    file.writelines(zstandard.compress(frame) for frame in _frames(lines))


def _frames(lines: Iterator[bytes]) -> Iterator[bytes]:
    some, size = [], 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size >= _FRAME_BYTES:
            yield b"".join(some)
            some, size = [], 0
    if some:
        yield b"".join(some)


def _write_metrics(file: BinaryIO, tallies: dict[str, Tally], samples: Samples) -> None:
    agents = (Of(agent, tally.metrics(), _groups(agent, tally, samples)) for agent, tally in sorted(tallies.items()))
    tasks = sum(tally.tasks for tally in tallies.values())
    write(file, agents, tasks=tasks, slots=sum(map(len, tallies.values())))


def _groups(agent: str, tally: Tally, samples: Samples) -> Iterator[dict[str, Any]]:
    for group in group_rows(tally):
        yield group | {"sample": samples.of(group["_ng_task_index"], agent)}
