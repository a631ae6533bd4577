"""Rollouts as a run records them, made without playing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw
from msgspec.structs import replace

import rollmill as rm
from rollmill.store.ledger import Ledger, Wanted
from rollmill.store.lines import Place, read_at
from rollmill.store.schema import Entry, entry_of, write_row
from rollmill.store.store import Store
from rollmill.types import Failure, Response, Reward, Rollout, Slot, Stop, Task, Usage

AGENT = "some_agent"


class Made(NamedTuple):
    entry: Entry
    row: bytes


def task(name: str, **fields) -> Task:
    return Task.of(f"What is {name}?", **fields)


def identity(name: str) -> str:
    return task(name).identity


def slot_of(name: str, repeat: int = 0, index: int = 0, *, occurrence: int = 0, agent: str = AGENT) -> Slot:
    return Slot(agent, identity(name), occurrence, repeat, index, repeat)


def rollout(slot: Slot, name: str = "x", reward: float = 1.0, **changes) -> Rollout:
    answer = rm.assistant(f"{name} is {name}.")
    usage = Usage(10, 5, 2, 1)
    seconds = {"model": 0.1234567, "play": 0.2}
    made = Rollout(
        slot,
        task(name),
        Response((answer,), usage),
        Stop.DONE,
        "model",
        Reward(reward, {"right": reward}, {"words": 3.0}),
    )
    return replace(made, turns=1, seconds=seconds, **changes)


def rewarded(name: str, repeat: int = 0, index: int = 0, reward: float = 1.0, *, occurrence: int = 0) -> Made:
    slot = slot_of(name, repeat, index, occurrence=occurrence)
    one = rollout(slot, name, reward)
    return Made(entry_of(one, "run"), write_row(one, "run"))


def failed(name: str, repeat: int = 0, index: int = 0, kind: str = "timeout", *, occurrence: int = 0) -> Entry:
    slot = slot_of(name, repeat, index, occurrence=occurrence)
    one = rollout(slot, name)
    return entry_of(replace(one, reward=None, stop=Stop.FAILED, failure=Failure("model", kind, "it said no")), "run")


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    with Store(path) as store:
        store.open()
        yield store


def begun(path: Path) -> Store:
    """An output that is open, for the one who closes it or lets it die."""
    store = Store(path)
    store.__enter__()
    store.open()
    return store


def die(store: Store) -> None:
    """What the kernel does for a process that was killed."""
    store.index._connection.close()
    os.close(store._lock._file)
    for file in (store.journal._file, store.failures._file):
        if file is not None:
            os.close(file._file)


def append(store: Store, *made: Made | Entry) -> None:
    """Record what has ended, as a recorder does."""
    batch = []
    for one in made:
        if isinstance(one, Made):
            batch.append((one.entry, store.journal.append(one.row)))
        else:
            batch.append((one, store.failures.append(one, Raw(b"{}"), final=True)))
    store.journal.commit()
    store.keep(batch)


def owed(store: Store, *names: str, repeats: int = 1) -> list[str]:
    """The tasks with slots that are owed, once for each slot."""
    named = {identity(name): name for name in names}
    wanted = [Wanted(AGENT, bytes.fromhex(identity(name))) for name in names]
    found, _ = Ledger(store.index).plan(wanted, lambda _: repeats)
    return [named[slot.task] for one in found for slot in one.slots]


def indexed(store: Store) -> list[tuple]:
    """Every rollout that the index has, whatever the numbers of its own."""
    columns = (
        "agent.name, hex(identity), rollout.task_index, occurrence, repeat, rollout_index, offset, length, inner,"
        "reward, parts, metrics, stop, failure, attempt, turns, tool_calls, input_tokens, output_tokens, cached_tokens,"
        "reasoning_tokens, seconds, labels, model, run"
    )
    query = f"SELECT {columns} FROM rollout JOIN task ON task.id = rollout.task JOIN agent ON agent.id = task.agent"
    return sorted(store.index._connection.execute(query).fetchall(), key=str)


def rows_at(store: Store) -> list[bytes]:
    """What stands where the index says that the rewarded rollouts are."""
    query = "SELECT offset, length, inner FROM rollout WHERE failure IS NULL ORDER BY task_index, occurrence, repeat"
    return [read_at(store.path, Place(*place)) for place in store.index._connection.execute(query).fetchall()]
