"""Tasks with what their rollouts earned beside them: the reward profile of NeMo Gym's early versions."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Raw

from rollmill.data.keys import Keys
from rollmill.data.rollouts import Head, Row, read_as, read_fields, read_rollouts
from rollmill.data.samples import Samples, samples_in
from rollmill.data.scratch import scratch
from rollmill.data.written import write_rows
from rollmill.errors import ConfigError
from rollmill.taskset import parse, read_rows
from rollmill.types import Task


class Written(NamedTuple):
    """How many tasks were written, of how many that have rollouts."""

    tasks: int
    of: int


def write_earned(rollouts: Path, out: Path, inputs: Path | None = None, *, threshold: float | None = None) -> Written:
    """Write each task's row with the metrics of its rollouts, in the order of `inputs`, or without them of the tasks.

    With a `threshold`, from which on a rollout passes, also how many did. Tasks that nobody verified are left out.
    """
    with scratch(out) as folder, samples_in(folder) as samples:
        earned = _read(rollouts, samples if inputs is None else None)
        tasks = earned.sampled(samples) if inputs is None else earned.asked_by(inputs)
        rows = (fields | _metrics(rewards, threshold) for fields, rewards in tasks if rewards)
        return Written(write_rows(out, folder, rows), len(earned.rewards))


class _Earned:
    """The rewards of each task."""

    def __init__(self, path: Path) -> None:
        self.keys = Keys(path)
        self.rewards: dict[int, array[float]] = {}
        self._identified: dict[bytes, tuple[int, ...]] = {}
        self._others: set[int] = set()

    def add(self, row: Row) -> None:
        self.keys.add(row.task_index, row.rollout_index, row.line)
        rewards = self.rewards.setdefault(row.task_index, array("d"))
        if (reward := row.counted.named.get("reward")) is not None:
            rewards.append(reward)
        if row.identity is None:
            self._others.add(row.task_index)
            return
        identity = row.identity.encode()
        known = self._identified.get(identity, ())
        if row.task_index not in known:
            self._identified[identity] = (*known, row.task_index)

    def sampled(self, samples: Samples) -> Iterator[_Task]:
        """Every task as its rollouts say it."""
        for task, rewards in sorted(self.rewards.items()):
            yield samples.of(task, "") or {}, rewards

    def asked_by(self, inputs: Path) -> Iterator[_Task]:
        """Every row of the inputs; raises `ConfigError` in the end where a rollout is of no row."""
        met: set[int] = set()
        for position, (line, content) in enumerate(read_rows(inputs)):
            place = f"{inputs}, line {line}"
            tasks = self._tasks_of(content, position, place)
            met.update(tasks)
            yield read_fields(content, place), [reward for task in tasks for reward in self.rewards.get(task, ())]
        left = [key for key in self.keys if key.task_index not in met]
        if left:
            raise ConfigError(
                f"{self.keys.path}: {len(left):,} of its rollouts are of no row of {inputs}, the first is {left[0]} in "
                f"line {left[0].line}; these two files do not belong together"
            )

    def _tasks_of(self, content: bytes, position: int, place: str) -> tuple[int, ...]:
        """By the index that a row brings, else by its hash; rollouts that know no hash count lines."""
        index = read_as(content, Head, place).task_index
        if index is not None:
            return (index,)
        found = self._identified.get(parse(content, Task, place).identity.encode(), ()) if self._identified else ()
        return found or ((position,) if position in self._others else ())


_Task = tuple[dict[str, Raw], Sequence[float]]


def _read(path: Path, samples: Samples | None) -> _Earned:
    earned = _Earned(path)
    for row in read_rollouts(path):
        earned.add(row)
        if samples is not None:
            samples.offer(row.task_index, "", row.rollout_index, row.given)
    if not earned.rewards:
        raise ConfigError(f"{path}: there is no rollout in it")
    earned.keys.refuse_doubles()
    return earned


def _metrics(rewards: Sequence[float], threshold: float | None) -> dict[str, Any]:
    found = {
        "avg_reward": statistics.fmean(rewards),
        # Of these rollouts, not of a sample: so it was there.
        "std_reward": statistics.pstdev(rewards),
        "min_reward": min(rewards),
        "max_reward": max(rewards),
        "total_samples": len(rewards),
    }
    if threshold is None:
        return found
    passed = sum(reward >= threshold for reward in rewards)
    return found | {
        "pass_rate": passed / len(rewards),
        "pass_rate_total": len(rewards),
        "pass_rate_passed": passed,
        "pass_threshold": threshold,
    }
