"""`<stem>_aggregate_metrics.json`: what an output comes to, by agent and by task, in NeMo Gym's shape."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO

from msgspec import Raw

from rollmill.quality.stats import passes
from rollmill.store.aggregate import Agent, Aggregate, Ended, Numbers
from rollmill.store.inputs import Inputs
from rollmill.types import encode

MOST_TASKS = 10_000
MOST_SLOTS = 200_000
"""More are not listed one by one: nobody loads a file of gigabytes."""

Repeats = Callable[[str], int]
"""How often an agent plays each of its tasks."""


def write_aggregate(file: BinaryIO, aggregate: Aggregate, inputs: Inputs, repeats: Repeats) -> None:
    """One object for each agent."""
    agents = aggregate.agents()
    omitted = _omitted(aggregate, agents)
    file.write(b"[")
    for number, agent in enumerate(agents):
        file.write(b",\n" if number else b"\n")
        file.writelines(_agent(aggregate, agent, inputs, repeats, omitted))
    file.write(b"\n]\n")


def _omitted(aggregate: Aggregate, agents: Sequence[Agent]) -> dict[str, Any] | None:
    """What is said in place of the tasks where there are too many."""
    tasks = sum(aggregate.tasks(agent) for agent in agents)
    slots = sum(aggregate.slots(agent) for agent in agents)
    if tasks <= MOST_TASKS and slots <= MOST_SLOTS:
        return None
    return {
        "tasks": tasks,
        "slots": slots,
        "why": f"only up to {MOST_TASKS} tasks with up to {MOST_SLOTS} slots are listed; "
        "index.sqlite in the run's folder, and every row of the output, have their numbers",
    }


def _agent(
    aggregate: Aggregate, agent: Agent, inputs: Inputs, repeats: Repeats, omitted: Mapping[str, Any] | None
) -> Iterator[bytes]:
    metrics = _metrics(aggregate.numbers(agent))
    head = {
        "agent_ref": {"name": agent.name},
        "agent_metrics": metrics | pass_metrics(aggregate.sizes(agent), aggregate.rewards(agent)),
        "key_metrics": {name: value for name, value in metrics.items() if name.startswith("mean/")},
    }
    yield encode(head).removesuffix(b"}") + b',"group_level_metrics":['
    if omitted is None:
        for number, group in enumerate(_groups(aggregate, agent, inputs, repeats)):
            yield (b",\n" if number else b"\n") + encode(group)
        yield b"]}"
    else:
        yield b'],"group_level_metrics_omitted":' + encode(omitted) + b"}"


def _metrics(numbers: Iterable[tuple[str, Numbers]]) -> dict[str, float]:
    return {
        f"{statistic}/{name}": value
        for name, one in numbers
        for statistic, value in (
            ("mean", one.mean),
            ("max", one.most),
            ("min", one.least),
            ("median", one.median),
            ("std", one.deviation),
        )
    }


def pass_metrics(sizes: Mapping[tuple[int, int], int], rewards: Iterable[tuple[int, float]]) -> dict[str, float]:
    """What repeats add, from 0 to 100: `sizes` and `rewards` as `Aggregate` has them. Nothing where tasks are single.

    The average of k is over the tasks that have k rollouts with a reward, of which the first k count; the first of
    every task are one run, the second another.
    """
    chances = passes(sizes)
    found = {f"pass@{k}/reward": 100 * value for k, value, _ in chances}
    runs = [_Runs(k) for k, _, _ in chances if k > 1]
    for _, of_task in groupby(rewards if runs else (), key=lambda one: one[0]):
        group = [reward for _, reward in of_task]
        for one in runs:
            one.add(group)
    for one in runs:
        found |= one.metrics()
    return found


class _Runs:
    """The first k rollouts of every task, seen as k runs over all of them."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._tasks = 0
        self._totals = [0.0] * k
        self._deviations = 0.0

    def add(self, rewards: Sequence[float]) -> None:
        if len(rewards) < self._k:
            return
        self._tasks += 1
        for run, reward in enumerate(rewards[: self._k]):
            self._totals[run] += reward
        self._deviations += statistics.stdev(rewards[: self._k])

    def metrics(self) -> dict[str, float]:
        if not self._tasks:
            return {}
        means = [100 * total / self._tasks for total in self._totals]
        deviation = statistics.stdev(means)
        name = f"pass@1[avg-of-{self._k}]/reward"
        return {
            name: statistics.fmean(means),
            f"{name}/std_dev_across_runs": deviation,
            f"{name}/std_err_across_runs": deviation / math.sqrt(self._k),
            f"{name}/avg_sample_std_dev": 100 * self._deviations / self._tasks,
        }


# Tasks.


def _groups(aggregate: Aggregate, agent: Agent, inputs: Inputs, repeats: Repeats) -> Iterator[dict[str, Any]]:
    for index, slots in groupby(aggregate.ended(agent), key=lambda one: one.task_index):
        yield _group(index, list(slots), inputs, repeats(agent.name))


def _group(index: int, slots: Sequence[Ended], inputs: Inputs, repeats: int) -> dict[str, Any]:
    rewarded = [one for one in slots if one.reward is not None]
    unverified = sum(one.reward is None and not one.failed for one in slots)
    expected = _expected(slots, repeats)
    row = _metrics(_numbers(rewarded)) | {
        "num_rollouts": len(rewarded),
        "expected_num_rollouts": expected,
        "missing_num_rollouts": expected - len(rewarded) - unverified,
        "reward_profile_completion_pct": 100 * len(rewarded) / expected,
        "rollout_infos": [_info(one) for one in rewarded],
        "_ng_task_index": index,
        "sample": _sample(slots, inputs),
    }
    return row | {"unverified_num_rollouts": unverified} if unverified else row


def _expected(slots: Sequence[Ended], repeats: int) -> int:
    """How many slots the index stands for; several tasks may share one, and a task may stand in the input twice."""
    occurrences: dict[int, int] = {}
    for one in slots:
        occurrences[one.task] = max(occurrences.get(one.task, 0), one.occurrence + 1)
    # There are more than the repeats ask for where an earlier run asked for more.
    return max(len(slots), repeats * sum(occurrences.values()))


def _numbers(slots: Sequence[Ended]) -> Iterator[tuple[str, Numbers]]:
    """The reward first, then the others by name."""
    for name in sorted({name for one in slots for name in one.numbers}, key=lambda name: (name != "reward", name)):
        values = [one.numbers[name] for one in slots if name in one.numbers]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        middle = statistics.median(values)
        yield name, Numbers(len(values), statistics.fmean(values), min(values), max(values), middle, deviation)


def _info(one: Ended) -> dict[str, Any]:
    return {
        "rollout_id": f"{one.task_index}:{one.rollout_index}",
        "_ng_task_index": one.task_index,
        "_ng_rollout_index": one.rollout_index,
    } | one.numbers


def _sample(slots: Sequence[Ended], inputs: Inputs) -> dict[str, Raw] | None:
    """The input row of the first slot. None where all failed, and the log was written without their rows."""
    played = next((one for one in slots if not one.failed), None)
    return inputs.of_failure(slots[0].place).row if played is None else inputs.of_rollout(played.place)
