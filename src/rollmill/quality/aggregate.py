"""What rollout rows come to, in the shape of NeMo Gym's aggregate metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rollmill.quality.groups import group_metrics
from rollmill.quality.rows import Places, counted, given
from rollmill.quality.tally import Tally


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
