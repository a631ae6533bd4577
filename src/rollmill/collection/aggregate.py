"""`<stem>_aggregate_metrics.json`: what an output comes to, by agent and by task, in NeMo Gym's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, BinaryIO

from msgspec import Raw

from rollmill.quality.aggregate import Of, write
from rollmill.quality.groups import Seen, group_metrics
from rollmill.quality.repeats import pass_metrics
from rollmill.quality.spread import named, spread
from rollmill.store.aggregate import Agent, Aggregate, Ended
from rollmill.store.inputs import Inputs

Repeats = Callable[[str], int]
"""How often an agent plays each of its tasks."""


def write_aggregate(file: BinaryIO, aggregate: Aggregate, inputs: Inputs, repeats: Repeats) -> None:
    """One object for each agent."""
    agents = aggregate.agents()
    tasks = sum(aggregate.tasks(agent) for agent in agents)
    slots = sum(aggregate.slots(agent) for agent in agents)
    write(file, (_agent(aggregate, agent, inputs, repeats) for agent in agents), tasks=tasks, slots=slots)


def _agent(aggregate: Aggregate, agent: Agent, inputs: Inputs, repeats: Repeats) -> Of:
    metrics = named((name, spread(*values)) for name, values in aggregate.values(agent))
    metrics |= pass_metrics(aggregate.sizes(agent), aggregate.rewards(agent))
    return Of(agent.name, metrics, _groups(aggregate, agent, inputs, repeats))


def _groups(aggregate: Aggregate, agent: Agent, inputs: Inputs, repeats: Repeats) -> Iterator[dict[str, Any]]:
    for index, slots in groupby(aggregate.ended(agent), key=lambda one: one.task_index):
        yield _group(index, list(slots), inputs, repeats(agent.name))


def _group(index: int, slots: Sequence[Ended], inputs: Inputs, repeats: int) -> dict[str, Any]:
    rewarded = [one for one in slots if one.reward is not None]
    unverified = sum(one.reward is None and not one.failed for one in slots)
    seen = [Seen(one.rollout_index, one.numbers) for one in rewarded]
    metrics = group_metrics(index, seen, expected=_expected(slots, repeats), unverified=unverified)
    return metrics | {"sample": _sample(slots, inputs)}


def _expected(slots: Sequence[Ended], repeats: int) -> int:
    """How many slots the index stands for; several tasks may share one, and a task may stand in the input twice."""
    occurrences: dict[int, int] = {}
    for one in slots:
        occurrences[one.task] = max(occurrences.get(one.task, 0), one.occurrence + 1)
    # There are more than the repeats ask for where an earlier run asked for more.
    return max(len(slots), repeats * sum(occurrences.values()))


def _sample(slots: Sequence[Ended], inputs: Inputs) -> dict[str, Raw] | None:
    """The input row of the first slot. None where all failed, and the log was written without their rows."""
    played = next((one for one in slots if not one.failed), None)
    return inputs.of_failure(slots[0].place).row if played is None else inputs.of_rollout(played.place)
