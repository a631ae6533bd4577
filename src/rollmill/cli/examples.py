"""The files of examples that NeMo Gym asks of a server folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollmill.taskset import read_rows

COUNT = 5


def faults(folder: Path) -> Iterator[str]:
    """What is wrong with a folder's `data`: five examples, metrics of five, five rollouts, and no conflicts."""
    data = folder / "data"
    yield from _rows(data / "example.jsonl", "five tasks, a row each")
    yield from _metrics(data / "example_metrics.json")
    for path in sorted(data.glob("*conflict*")):
        yield f"data/{path.name}: settle what is in conflict, and delete it"
    yield from _rows(data / "example_rollouts.jsonl", "`rollmill collect` on the five tasks makes it")


def _rows(path: Path, needed: str) -> Iterator[str]:
    if not path.is_file():
        yield f"data/{path.name} is missing: {needed}"
    elif (count := sum(1 for _ in read_rows(path))) != COUNT:
        yield f"data/{path.name}: {COUNT} rows, not {count}"


class _Metrics(msgspec.Struct, frozen=True):
    examples: int | None = msgspec.field(default=None, name="Number of examples")


def _metrics(path: Path) -> Iterator[str]:
    if not path.is_file():
        yield f"data/{path.name} is missing: `ng_prepare_data +mode=example_validation` makes it"
        return
    try:
        counted = msgspec.json.decode(path.read_bytes(), type=_Metrics).examples
    except msgspec.DecodeError as error:
        yield f"data/{path.name}: {error}"
        return
    if counted != COUNT:
        yield f'data/{path.name}: "Number of examples" is {COUNT}, not {"missing" if counted is None else counted}'
