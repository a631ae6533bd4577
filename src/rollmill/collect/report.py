"""What a collection came to: every number averaged, the reward with its interval, tokens, and where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rollmill.quality.stats import Groups, Running
from rollmill.store.schema import Summary
from rollmill.types import Rollout

STAGES = ("model", "tools", "verify")


class Report:
    """Counts rollouts as they end, and those that an earlier run left in the same output. Bounded by the tasks."""

    def __init__(self) -> None:
        self.numbers: dict[str, Running] = {}
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
        counts = {
            "turns": rollout.turns,
            "tool_calls": rollout.tool_calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
        }
        numbers = {"reward": rollout.reward.value, **rollout.reward.parts, **rollout.reward.metrics, **counts}
        self._add(rollout.slot.task_index, numbers, rollout.seconds, rollout.stop)

    def retrying(self, rollout: Rollout, wait_s: float) -> None:
        self.retries += 1

    def stored(self, row: Summary) -> None:
        """Count a rollout that was there before."""
        block = row.rollmill
        counts = {
            "turns": block.turns,
            "tool_calls": block.tool_calls,
            "input_tokens": row.usage.input_tokens,
            "output_tokens": row.usage.output_tokens,
        }
        numbers = {"reward": row.reward, **row.reward_components, **block.metrics, **counts}
        self._add(row.task_index, numbers, block.seconds, block.stop)

    def _add(self, task: int, numbers: Mapping[str, float], seconds: Mapping[str, float], stop: str) -> None:
        for name, value in numbers.items():
            self.numbers.setdefault(name, Running()).add(value)
        for stage, spent in seconds.items():
            self.seconds.setdefault(stage, Running()).add(spent)
        self.groups.add(task, numbers["reward"])
        self.stops[str(stop)] += 1

    # What it came to.

    @property
    def rollouts(self) -> int:
        return self.numbers["reward"].count if self.numbers else 0

    def means(self) -> dict[str, float]:
        """The mean of every numeric field, as NeMo Gym shows them after a collection."""
        return {name: round(running.mean, 6) for name, running in self.numbers.items()}

    def metrics(self) -> dict[str, Any]:
        """Everything, for machines."""
        interval = self.groups.interval()
        return {
            "mean": self.means(),
            "reward": {"mean": interval.mean, "ci95": interval.half_width, "std": self._std("reward")},
            "pass": {f"pass@{k}": {"value": value, "tasks": tasks} for k, value, tasks in self._passes()},
            "rollouts": self.rollouts,
            "tasks": len(self.groups),
            "failed": sum(self.failures.values()),
            "failures": dict(self.failures),
            "retries": self.retries,
            "stops": dict(self.stops),
            "tokens": {name: self._total(name) for name in ("input_tokens", "output_tokens")},
            "seconds": {stage: {"mean": running.mean, "max": running.most} for stage, running in self.seconds.items()},
        }

    def lines(self) -> list[str]:
        """The same, for people."""
        interval = self.groups.interval()
        spread = "" if interval.half_width is None else f" ± {interval.half_width:.3f} (95 %, clustered by task)"
        size = f"{_counted(self.rollouts, 'rollout')} of {_counted(len(self.groups), 'task')}"
        lines = [f"reward    {interval.mean:.3f}{spread}, {size}"]
        if passes := self._passes():
            chances = ", ".join(
                f"pass@{k} {100 * value:.1f} % of {_counted(tasks, 'task')}" for k, value, tasks in passes
            )
            lines.append(f"passed    {chances} with that many rollouts (a reward of at least 1)")
        tokens = f"{self._total('input_tokens'):,} in, {self._total('output_tokens'):,} out"
        lines.append(f"tokens    {tokens}")
        if shares := self._shares():
            lines.append(f"time      {shares}")
        if self.failures:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.failures.most_common())
            lines.append(f"failed    {sum(self.failures.values())} slots without a reward: {kinds}")
        return lines

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
        running = self.numbers.get(name)
        return round(running.mean * running.count) if running else 0

    def _std(self, name: str) -> float:
        running = self.numbers.get(name)
        return running.deviation if running else 0.0


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
