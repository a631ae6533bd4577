"""What recording costs, in one process: `recording.py ROLLOUTS --base-url URL --input FILE [--out FILE]`.

Some rollouts are played first. Then so many like them are encoded as rows, which go the whole way into an output with
its journal, index and ledger, or without one to /dev/null. Prints the CPU that one took, and that of planning in it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import time
from collections.abc import AsyncIterator, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
import uvloop
from environments import Boxed

import rollmill as rm
from rollmill.models.openai import OpenAI
from rollmill.rollout import play
from rollmill.store.ledger import Ledger, Wanted
from rollmill.store.recorder import Recorder
from rollmill.store.schema import entry_of, write_row
from rollmill.store.store import Store
from rollmill.taskset import parse
from rollmill.types import Rollout, Slot

PLAYED = 256
STRETCH = 128
PER_S = 8000
"""No faster than a run, so that as many rollouts share a transaction and an fsync as in a run."""


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


async def recorded(rollouts: list[Rollout], count: int, out: Path) -> float:
    """Plan and record so many; the CPU that planning took, in seconds."""
    planning_s = 0.0
    with Store(out) as store:
        store.open()
        ledger = Ledger(store.index)
        examples = itertools.cycle(rollouts)
        async with Recorder(store) as recorder:
            async for stretch in paced(identities(count)):
                began = time.thread_time()
                owed, _ = ledger.plan([Wanted("bench", identity) for identity in stretch], lambda _: 1)
                planning_s += time.thread_time() - began
                for one in owed:
                    rollout = msgspec.structs.replace(next(examples), slot=one.slots[0])
                    await recorder.rewarded(entry_of(rollout, "run"), write_row(rollout, "run"))
    return planning_s


async def thrown_away(rollouts: list[Rollout], count: int) -> float:
    """Encode so many; nothing is planned."""
    null = os.open(os.devnull, os.O_WRONLY)
    examples, numbers = itertools.cycle(rollouts), itertools.count()
    async for stretch in paced(identities(count)):
        for identity in stretch:
            slot = Slot("bench", identity.hex(), task_index=next(numbers))
            rollout = msgspec.structs.replace(next(examples), slot=slot)
            os.write(null, write_row(rollout, "run") + b"\n")
    os.close(null)
    return 0.0


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
    rollouts = uvloop.run(played(given.base_url, given.input))
    began = cpu_s()
    count, out = given.rollouts, given.out
    planning_s = uvloop.run(recorded(rollouts, count, out) if out else thrown_away(rollouts, count))
    taken = {"cpu_ms": cpu_s() - began, "planning_ms": planning_s}
    print(msgspec.json.encode({name: 1e3 * seconds / count for name, seconds in taken.items()}).decode())


if __name__ == "__main__":
    main()
