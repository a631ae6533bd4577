"""What recording costs, in one process: `recording.py ROLLOUTS --base-url URL --input FILE [--out FILE]`.

Some rollouts are played first. Then so many like them are planned and encoded as rows, which go the whole way into an
output with its journal and index, or without one to /dev/null, planned by a ledger that has no index. Prints the CPU
that one took, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from environments import Boxed

import rollmill as rm
from rollmill.cli.loop import run_fast
from rollmill.collection.stretch import STRETCH
from rollmill.models.openai import OpenAI
from rollmill.rollout import play
from rollmill.store.index import Held, NewTask, TaskKey, TaskRow
from rollmill.store.ledger import Ledger, Wanted
from rollmill.store.recorder import Recorder
from rollmill.store.schema import entry_of, write_row
from rollmill.store.store import Store
from rollmill.taskset import parse
from rollmill.types import Rollout

PLAYED = 256
PER_S = 8000
"""No faster than a run, so that as many rollouts share a transaction and an fsync as in a run."""
IN_A_TURN = 128
"""So many end in one turn of the event loop as are in flight, where a server answers all of them at once."""


async def played(base_url: str, source: Path) -> list[Rollout]:
    with source.open("rb") as file:
        tasks = [parse(line, Boxed.task_type, source.name) for line in itertools.islice(file, PLAYED)]
    async with OpenAI("mock", base_url) as model:
        return [await play(task, Boxed, rm.ToolAgent(), model) for task in tasks]


def identities(count: int) -> Iterator[list[bytes]]:
    """Tasks by their hashes, as many at a time as are read at a time from an input."""
    hashes = (blake2b(number.to_bytes(8), digest_size=16).digest() for number in range(count))
    while stretch := list(itertools.islice(hashes, STRETCH)):
        yield stretch


async def paced(stretches: Iterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    for stretch in stretches:
        yield stretch
        await asyncio.sleep(STRETCH / PER_S)


class Nowhere:
    """What a ledger needs of an index, where nothing is looked up or written."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def tasks(self, keys: Iterable[TaskKey]) -> dict[TaskKey, TaskRow]:
        return {}

    def task_indices(self) -> Iterator[tuple[int, bool]]:
        return iter(())

    def held(self, indices: Iterable[int]) -> Mapping[int, Mapping[int, Sequence[Held]]]:
        return {}

    def add_tasks(self, tasks: Sequence[NewTask], run: str = "") -> list[TaskRow]:
        return [TaskRow(next(self._numbers), task.task_index, task.given, task.asked) for task in tasks]

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()


async def planned(index: Any, rollouts: list[Rollout], count: int) -> AsyncIterator[Rollout]:
    """So many rollouts, each of a slot that a ledger gave."""
    ledger = Ledger(index)
    examples = itertools.cycle(rollouts)
    async for stretch in paced(identities(count)):
        owed, _ = ledger.plan([Wanted("bench", identity) for identity in stretch], lambda _: 1)
        for number, one in enumerate(owed, 1):
            yield msgspec.structs.replace(next(examples), slot=one.slots[0])
            if number % IN_A_TURN == 0:
                await asyncio.sleep(0)


async def recorded(rollouts: list[Rollout], count: int, out: Path) -> None:
    with Store(out) as store:
        store.open()
        async with Recorder(store) as recorder:
            async for rollout in planned(store.index, rollouts, count):
                await recorder.rewarded(entry_of(rollout, "run"), write_row(rollout, "run"))


async def thrown_away(rollouts: list[Rollout], count: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    async for rollout in planned(Nowhere(), rollouts, count):
        # An entry is what progress and limits count by, whether it is indexed or not.
        entry_of(rollout, "run")
        os.write(null, write_row(rollout, "run") + b"\n")
    os.close(null)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rollouts", type=int)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rollouts = run_fast(played(given.base_url, given.input))
    began = cpu_s()
    count, out = given.rollouts, given.out
    run_fast(recorded(rollouts, count, out) if out else thrown_away(rollouts, count))
    print(1e3 * (cpu_s() - began) / count)


if __name__ == "__main__":
    main()
