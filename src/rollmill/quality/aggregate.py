"""What rollout rows come to, in the shape of NeMo Gym's aggregate metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from rollmill.quality.groups import group_metrics
from rollmill.quality.rows import Places, counted, given
from rollmill.quality.tally import Tally
from rollmill.types import encode

MOST_TASKS = 10_000
MOST_SLOTS = 200_000
"""More are not listed one by one: nobody loads a file of gigabytes."""


class Of(NamedTuple):
    """What one agent's rollouts come to."""

    agent: str
    metrics: Mapping[str, float]
    groups: Iterable[Mapping[str, Any]]
    """By task; not looked at where there are too many."""


def aggregate(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one agent's rows, in memory: over all of them, and by task.

    How often a task was to be played is not known here: as often as its highest index says.
    """
    tally, places = Tally(), Places()
    first: dict[int, tuple[int, Mapping[str, Any]]] = {}
    for row in rows:
        task, rollout = places.of(row)
        tally.add(task, rollout, counted(row))
        if task not in first or rollout < first[task][0]:
            first[task] = rollout, row
    groups = [group | {"sample": given(first[group["_ng_task_index"]][1])} for group in group_rows(tally)]
    return {"group_level_metrics": groups, **agent_metrics(tally.metrics())}


def agent_metrics(metrics: Mapping[str, float]) -> dict[str, Any]:
    """All of them, and those that are looked at first."""
    key = {name: value for name, value in metrics.items() if name.startswith("mean/")}
    return {"agent_metrics": dict(metrics), "key_metrics": key}


def group_rows(tally: Tally, expected: Mapping[int, int] | None = None) -> Iterator[dict[str, Any]]:
    """Each task's row, without its sample; `expected` says how many rollouts each was to have."""
    for group in tally.groups():
        seen = len(group.seen) + group.unverified
        least = max(seen, group.highest + 1) if expected is None else expected.get(group.task_index, seen)
        yield group_metrics(group.task_index, group.seen, expected=least, unverified=group.unverified)


def write(file: BinaryIO, agents: Iterable[Of], *, tasks: int, slots: int) -> None:
    """One object for each agent, some after the other; of all, there are so many tasks and slots."""
    omitted = None
    if tasks > MOST_TASKS or slots > MOST_SLOTS:
        why = f"only up to {MOST_TASKS} tasks with up to {MOST_SLOTS} slots are listed; every row has its own numbers"
        omitted = {"tasks": tasks, "slots": slots, "why": why}
    file.write(b"[")
    for number, one in enumerate(agents):
        file.write(b",\n" if number else b"\n")
        file.writelines(_object(one, omitted))
    file.write(b"\n]\n")


def _object(one: Of, omitted: Mapping[str, Any] | None) -> Iterator[bytes]:
    head = {"agent_ref": {"name": one.agent}, **agent_metrics(one.metrics)}
    yield encode(head).removesuffix(b"}") + b',"group_level_metrics":['
    for number, group in enumerate(one.groups if omitted is None else ()):
        yield (b",\n" if number else b"\n") + encode(group)
    yield b"]}" if omitted is None else b'],"group_level_metrics_omitted":' + encode(omitted) + b"}"
