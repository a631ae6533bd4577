"""What an output holds: every number averaged, the reward with its interval, tokens, and where the time went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from rollmill.quality.stats import Histogram, Interval, clustered, passes
from rollmill.store.totals import Spread, Totals

STAGES = ("setup", "model", "tools", "verify")


class Clusters(Protocol):
    """Sums over the tasks of an output, see `quality.stats`."""

    @property
    def tasks(self) -> int: ...
    @property
    def rollouts(self) -> int: ...
    @property
    def total(self) -> float: ...
    @property
    def squares(self) -> float: ...
    @property
    def cross(self) -> float: ...
    @property
    def counts(self) -> float: ...
    @property
    def histogram(self) -> Histogram: ...


class Report:
    """Totals and sums by task, as people and machines read them."""

    def __init__(self, totals: Totals, clusters: Clusters, *, retries: Mapping[str, int] | None = None) -> None:
        self.totals = totals
        self.tasks = clusters.tasks
        self.retries = dict(retries or {})
        self._histogram = clusters.histogram
        self.interval: Interval = clustered(
            tasks=clusters.tasks,
            rollouts=clusters.rollouts,
            total=clusters.total,
            squares=clusters.squares,
            cross=clusters.cross,
            counts=clusters.counts,
        )

    def means(self) -> dict[str, float]:
        """The mean of every numeric field, as NeMo Gym shows them after a collection."""
        # An environment's own metric has its name for itself.
        spreads = self.totals.numbers | {
            name: spread for name, spread in self.totals.counts.items() if name not in self.totals.numbers
        }
        return {name: round(spread.mean, 6) for name, spread in spreads.items()}

    def metrics(self) -> dict[str, Any]:
        """Everything, for machines; each mean beside the number of rollouts that it is over."""
        totals = self.totals
        return {
            "mean": self.means(),
            "over": {name: spread.count for name, spread in (totals.counts | totals.numbers).items()},
            "reward": {
                "mean": _finite(self.interval.mean),
                "ci95": self.interval.half_width,
                "std": _deviation(totals.numbers.get("reward")),
                "rollouts": totals.rewarded,
                "tasks": self.tasks,
            },
            "pass": {f"pass@{k}": {"value": value, "tasks": tasks} for k, value, tasks in passes(self._histogram)},
            "rollouts": totals.rollouts,
            "rewarded": totals.rewarded,
            "unverified": totals.unverified,
            "tasks": self.tasks,
            "failed": totals.failed,
            "completion": _share(totals.rollouts, totals.rollouts + totals.failed),
            "failures": totals.failures,
            "retries": self.retries,
            "stops": totals.stops,
            "tokens": {name: self._total(name) for name in ("input_tokens", "output_tokens")},
            "seconds": {stage: {"mean": one.mean, "max": one.most} for stage, one in totals.seconds.items()},
            "by": {
                label: {
                    value: {
                        "reward": _finite(part.reward.mean),
                        "rewarded": part.reward.count,
                        "ended": part.ended,
                        "failed": part.failed,
                    }
                    for value, part in values.items()
                }
                for label, values in totals.parts.items()
            },
        }

    def lines(self) -> list[str]:
        """The same, for people."""
        totals = self.totals
        lines = self._reward_lines() if totals.rewarded else []
        if totals.unverified:
            lines.append(f"deferred  {counted(totals.unverified, 'rollout')} not verified: no mean counts them")
        if totals.rollouts:
            tokens = f"{self._total('input_tokens'):,} in, {self._total('output_tokens'):,} out"
            lines.append(f"tokens    {tokens}")
            if shares := self._shares():
                lines.append(f"time      {shares}")
        for label, values in totals.parts.items():
            if len(values) > 1:
                lines += self._part_lines(label)
        if totals.failures:
            kinds = ", ".join(f"{count} {kind}" for kind, count in _most(totals.failures))
            whole = totals.rollouts + totals.failed
            lines.append(f"failed    {counted(totals.failed, 'slot')} of {whole:,} without a reward: {kinds}")
        if self.retries:
            lines.append(f"retried   {', '.join(f'{count:,} {kind}' for kind, count in _most(self.retries))}")
        return lines

    def _reward_lines(self) -> list[str]:
        half = self.interval.half_width
        spread = "" if half is None else f" ± {half:.3f} (95 %, clustered by task)"
        size = f"{counted(self.totals.rewarded, 'rollout')} of {counted(self.tasks, 'task')}"
        lines = [f"reward    {self.interval.mean:.3f}{spread}, {size}"]
        if found := passes(self._histogram):
            # Where every task has as many rollouts, one count of tasks serves all.
            same = len({tasks for _, _, tasks in found}) == 1
            chances = (f"pass@{k} {100 * value:.1f} %{'' if same else f' of {tasks}'}" for k, value, tasks in found)
            lines.append(f"passed    {', '.join(chances)} (a reward of at least 1)")
        return lines

    def _part_lines(self, label: str) -> list[str]:
        parts = sorted(self.totals.parts[label].items(), key=lambda item: -item[1].ended)
        lines = [
            f"{label if not n else '':<9} {value}: reward {part.reward.mean:.3f} over {part.reward.count:,}"
            + (f", {part.failed:,} failed" if part.failed else "")
            for n, (value, part) in enumerate(parts[:_MOST_PARTS])
        ]
        more = len(parts) - _MOST_PARTS
        return [*lines, f"{'':9} and {more:,} more in metrics.json"] if more > 0 else lines

    def _shares(self) -> str:
        spent = {stage: self.totals.seconds[stage] for stage in STAGES if stage in self.totals.seconds}
        whole = sum(one.mean * one.count for one in spent.values())
        if not whole:
            return ""
        shares = {stage: round(100 * one.mean * one.count / whole) for stage, one in spent.items()}
        said = ", ".join(f"{stage} {share} %" for stage, share in shares.items() if share or stage != "setup")
        return f"{said} of {whole / self.totals.rollouts:.2f} s a rollout"

    def _total(self, name: str) -> int:
        spread = self.totals.counts.get(name)
        return round(spread.mean * spread.count) if spread else 0


_MOST_PARTS = 8


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _deviation(spread: Spread | None) -> float:
    return spread.deviation if spread else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
