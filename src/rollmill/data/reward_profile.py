"""A reward profile: what the rollouts of each task come to, beside the rollouts, and what they come to altogether."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from rollmill.data.keys import Keys, refuse_difference
from rollmill.data.rollouts import Head, read_as, read_fields, read_rollouts
from rollmill.data.samples import Samples, samples_in
from rollmill.data.scratch import scratch
from rollmill.data.written import write_json, write_rows
from rollmill.errors import ConfigError
from rollmill.quality.aggregate import group_rows
from rollmill.quality.tally import Tally
from rollmill.store.folder import stem
from rollmill.taskset import read_rows


class Profile(Struct, frozen=True):
    """What was written."""

    tasks: Path
    agents: Path
    rollouts: int
    profiled: int
    """How many tasks have a row."""
    expected: int | None
    """How many rollouts the inputs ask for, where they are given."""


def profile(rollouts: Path, inputs: Path | None = None, *, partial: bool = False) -> Profile:
    """Write both files. With `inputs`, which name every rollout that there should be, both files have to agree."""
    tasks = rollouts.with_name(f"{stem(rollouts)}_reward_profiling.jsonl")
    agents = rollouts.with_name(f"{stem(rollouts)}_agent_metrics.json")
    with scratch(tasks) as folder, samples_in(folder) as samples:
        want = None if inputs is None else _read_inputs(inputs, samples)
        tallies, have = _read_rollouts(rollouts, samples if want is None else None)
        have.refuse_doubles()
        if want is not None:
            want.keys.refuse_doubles()
            refuse_difference(have, want.keys, partial=partial)
        profiled = write_rows(tasks, folder, _groups(tallies, samples, want))
        metrics = [{"agent_ref": {"name": agent}, **tally.metrics()} for agent, tally in sorted(tallies.items())]
        write_json(agents, metrics)
    return Profile(tasks, agents, len(have), profiled, None if want is None else len(want.keys))


class _Wanted:
    """What the inputs ask for."""

    def __init__(self, path: Path) -> None:
        self.keys = Keys(path)
        self._by_agent: dict[str, Counter[int]] = {}

    def add(self, agent: str, task: int, rollout: int, line: int) -> None:
        self.keys.add(task, rollout, line)
        self._by_agent.setdefault(agent, Counter())[task] += 1

    def of(self, agent: str) -> Counter[int]:
        """How many rollouts of each task; inputs that name no agent are everybody's."""
        return self._by_agent.get(agent) or self._by_agent.get("", Counter())


def _read_inputs(path: Path, samples: Samples) -> _Wanted:
    wanted = _Wanted(path)
    for line, content in read_rows(path):
        place = f"{path}, line {line}"
        head, fields = read_as(content, Head, place), read_fields(content, place)
        task, rollout = head.task_index, head.rollout_index
        if task is None or rollout is None:
            raise ConfigError(
                f"{place}: it has no _ng_task_index and _ng_rollout_index: expected inputs as a collection writes them "
                "with +nemo_gym_files=true"
            )
        wanted.add(head.agent, task, rollout, line)
        kept = {name: value for name, value in fields.items() if name not in ("_ng_task_index", "_ng_rollout_index")}
        samples.offer(task, head.agent, rollout, kept)
    return wanted


def _read_rollouts(path: Path, samples: Samples | None) -> tuple[dict[str, Tally], Keys]:
    """By agent; their inputs, too, where nothing else says them."""
    tallies: dict[str, Tally] = {}
    keys = Keys(path)
    for row in read_rollouts(path):
        tallies.setdefault(row.agent, Tally()).add(row.task_index, row.rollout_index, row.counted)
        keys.add(row.task_index, row.rollout_index, row.line)
        if samples is not None:
            samples.offer(row.task_index, row.agent, row.rollout_index, row.given)
    if not tallies:
        raise ConfigError(f"{path}: there is no rollout in it")
    return tallies, keys


def _groups(tallies: dict[str, Tally], samples: Samples, want: _Wanted | None) -> Iterator[dict[str, Any]]:
    """In the order of the tasks."""
    of_agents = [_of_agent(agent, tally, samples, want) for agent, tally in sorted(tallies.items())]
    return heapq.merge(*of_agents, key=lambda group: group["_ng_task_index"])


def _of_agent(agent: str, tally: Tally, samples: Samples, want: _Wanted | None) -> Iterator[dict[str, Raw | Any]]:
    for group in group_rows(tally, None if want is None else want.of(agent)):
        yield group | {"agent_ref": {"name": agent}, "sample": samples.of(group["_ng_task_index"], agent)}
