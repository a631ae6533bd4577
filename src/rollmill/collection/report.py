"""What a collection came to: every number averaged, the reward with its interval, tokens, and where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rollmill.quality.stats import Groups, Running
from rollmill.store.schema import Summary
from rollmill.types import Rollout, Slot

COUNTS = ("turns", "tool_calls", "input_tokens", "output_tokens")
STAGES = ("model", "tools", "verify")


class Report:
    """Counts rollouts as they end, and those that an earlier run left in the same output. Bounded by the tasks."""

    def __init__(self) -> None:
        self.numbers: dict[str, Running] = {}
        self.counts: dict[str, Running] = {}
        self.groups = Groups()
        self.seconds: dict[str, Running] = {}
        self.failures: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.retries = 0

    # As an observer of the collector.

    def ended(self, rollout: Rollout) -> None:
        if rollout.failure is not None:
            self.failures[f"{rollout.failure.where}: {rollout.failure.kind}"] += 1
        if rollout.reward is None:
            return
        usage = rollout.response.usage
        reward = rollout.reward
        self._add(rollout.slot, reward.value, {**reward.parts, **reward.metrics})
        self._count(rollout.turns, rollout.tool_calls, usage.input_tokens, usage.output_tokens)
        self._end(rollout.stop, rollout.seconds)

    def retrying(self, rollout: Rollout, wait_s: float) -> None:
        self.retries += 1

    def stored(self, row: Summary) -> None:
        """Count a rollout that was there before."""
        block = row.rollmill
        self._add(row.slot, row.reward, {**row.reward_components, **block.metrics})
        self._count(block.turns, block.tool_calls, row.usage.input_tokens, row.usage.output_tokens)
        self._end(block.stop, block.seconds)

    def _add(self, slot: Slot, reward: float, named: Mapping[str, float]) -> None:
        self.groups.add(f"{slot.agent}/{slot.task}", reward)
        for name, value in {"reward": reward, **named}.items():
            self.numbers.setdefault(name, Running()).add(value)

    def _count(self, *counts: int) -> None:
        for name, value in zip(COUNTS, counts, strict=True):
            self.counts.setdefault(name, Running()).add(value)

    def _end(self, stop: str, seconds: Mapping[str, float]) -> None:
        self.stops[str(stop)] += 1
        for stage, spent in seconds.items():
            self.seconds.setdefault(stage, Running()).add(spent)

    # What it came to.

    @property
    def rollouts(self) -> int:
        return self.numbers["reward"].count if self.numbers else 0

    def means(self) -> dict[str, float]:
        """The mean of every numeric field, as NeMo Gym shows them after a collection."""
        # An environment's own metric has its name for itself.
        return {name: round(running.mean, 6) for name, running in (self.numbers | self._free_counts()).items()}

    def metrics(self) -> dict[str, Any]:
        """Everything, for machines."""
        interval = self.groups.interval()
        return {
            "mean": self.means(),
            "reward": {"mean": interval.mean, "ci95": interval.half_width, "std": self._std("reward")},
            "pass": {f"pass@{k}": {"value": value, "tasks": tasks} for k, value, tasks in self._passes()},
            "rollouts": self.rollouts,
            "tasks": len(self.groups),
            "failed": self.failures.total(),
            "failures": dict(self.failures),
            "retries": self.retries,
            "stops": dict(self.stops),
            "tokens": {name: self._total(name) for name in ("input_tokens", "output_tokens")},
            "seconds": {stage: {"mean": running.mean, "max": running.most} for stage, running in self.seconds.items()},
        }

    def lines(self) -> list[str]:
        """The same, for people."""
        lines = self._reward_lines() if self.rollouts else []
        if self.failures:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.failures.most_common())
            lines.append(f"failed    {counted(self.failures.total(), 'slot')} without a reward: {kinds}")
        return lines

    def _reward_lines(self) -> list[str]:
        interval = self.groups.interval()
        spread = "" if interval.half_width is None else f" ± {interval.half_width:.3f} (95 %, clustered by task)"
        size = f"{counted(self.rollouts, 'rollout')} of {counted(len(self.groups), 'task')}"
        lines = [f"reward    {interval.mean:.3f}{spread}, {size}"]
        if passes := self._passes():
            # Where every task has as many rollouts, one count of tasks serves all.
            same = len({tasks for _, _, tasks in passes}) == 1
            chances = (f"pass@{k} {100 * value:.1f} %{'' if same else f' of {tasks}'}" for k, value, tasks in passes)
            lines.append(f"passed    {', '.join(chances)} (a reward of at least 1)")
        tokens = f"{self._total('input_tokens'):,} in, {self._total('output_tokens'):,} out"
        lines.append(f"tokens    {tokens}")
        if shares := self._shares():
            lines.append(f"time      {shares}")
        return lines

    def _free_counts(self) -> dict[str, Running]:
        return {name: running for name, running in self.counts.items() if name not in self.numbers}

    def _passes(self) -> list[tuple[int, float, int]]:
        """pass@k for k = 1 and for every power of two up to the commonest group size; none where groups are single."""
        sizes = self.groups.sizes
        largest = max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0
        wanted = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < largest] + [largest]
        return [(k, *self.groups.pass_at(k)) for k in wanted] if largest > 1 else []

    def _shares(self) -> str:
        spent = {
            stage: self.seconds[stage].mean * self.seconds[stage].count for stage in STAGES if stage in self.seconds
        }
        whole = sum(spent.values())
        shares = (
            ", ".join(f"{stage} {100 * seconds / whole:.0f} %" for stage, seconds in spent.items()) if whole else ""
        )
        mean = whole / self.rollouts if self.rollouts else 0.0
        return f"{shares} of {mean:.2f} s a rollout" if shares else ""

    def _total(self, name: str) -> int:
        running = self.counts.get(name)
        return round(running.mean * running.count) if running else 0

    def _std(self, name: str) -> float:
        running = self.numbers.get(name)
        return running.deviation if running else 0.0


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
