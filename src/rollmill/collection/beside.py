"""The files beside an output that tell what it holds: written at the end of a run, if they are missing or behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from rollmill.collection.aggregate import Repeats, write_aggregate
from rollmill.collection.nemo_gym import write_failures, write_materialized_inputs
from rollmill.collection.worker import Job
from rollmill.errors import StoreError
from rollmill.store.aggregate import Aggregate
from rollmill.store.folder import run_folder, stem
from rollmill.store.inputs import Inputs, read_inputs
from rollmill.store.reader import NAME, read_index
from rollmill.store.store import Store
from rollmill.store.streamed import replacing

_NOTED = "beside"
_Write = Callable[[BinaryIO, Aggregate, Inputs], None]
Owed = Callable[[], Iterator[list[Job]]]
"""Finds the slots that have not ended, some after the other."""


async def write_beside(store: Store, repeats: Repeats, owed: Owed | None) -> None:
    """Write what is missing or behind, in a thread of its own; cancelled, it leaves the files as they were.

    With `owed`, NeMo Gym's other files are written as well.
    """
    if not (store.totals.rollouts or store.totals.failed):
        return
    stopped = threading.Event()
    files = _files(store.path, repeats, owed, stopped.is_set)
    held = f"{store.journal.size} {store.failures.size}"
    if store.index.about(_NOTED) == held and all(path.exists() for path in files):
        return
    writing = asyncio.create_task(asyncio.to_thread(_write_all, store, files, stopped.is_set))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        stopped.set()
        # The thread reads what will be closed.
        await asyncio.gather(writing, return_exceptions=True)
        raise
    # Noted last: after a crash in between they are written again.
    store.index.note(_NOTED, held)


def write_aggregate_of(output: Path, metrics: Path, folder: Path) -> None:
    """What an output comes to that nobody writes to; `folder` is scratch."""
    reader = read_index(run_folder(output) / NAME)
    if reader is None:
        raise StoreError(f"{run_folder(output)}: there is no index in it")
    with reader, read_inputs(output) as inputs, replacing(metrics, folder) as file:
        # How often its tasks were to be played is not known any more: as often as there are slots.
        write_aggregate(file, Aggregate(reader), inputs, lambda _: 1)


def beside(output: Path, name: str) -> Path:
    return output.with_name(f"{stem(output)}_{name}")


def _files(output: Path, repeats: Repeats, owed: Owed | None, stopped: Callable[[], bool]) -> dict[Path, _Write]:
    files: dict[Path, _Write] = {
        beside(output, "aggregate_metrics.json"): lambda file, aggregate, inputs: write_aggregate(
            file, aggregate, inputs, repeats
        )
    }
    if owed is not None:
        files[beside(output, "failures.jsonl")] = write_failures
        files[beside(output, "materialized_inputs.jsonl")] = lambda file, aggregate, inputs: write_materialized_inputs(
            file, aggregate, inputs, _jobs(owed, stopped)
        )
    return files


def _write_all(store: Store, files: dict[Path, _Write], stopped: Callable[[], bool]) -> None:
    reader = read_index(store.folder / NAME)
    if reader is None:
        return
    with reader, read_inputs(store.path) as inputs:
        reader.heed(stopped)
        for path, write in files.items():
            with replacing(path, store.folder) as file:
                write(file, Aggregate(reader), inputs)


def _jobs(owed: Owed, stopped: Callable[[], bool]) -> Iterator[Job]:
    for jobs in owed():
        if stopped():
            raise StoreError("stopped while the owed slots were listed")
        yield from jobs
