"""Measures a collection while it runs, in constant memory: rates, where the time goes, what looks wrong."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from rollmill.collection.bottleneck import Evidence, name_bottleneck
from rollmill.collection.snapshot import Oldest, Snapshot
from rollmill.collection.worker import Pressure
from rollmill.cores import usable_cores
from rollmill.store.schema import Entry
from rollmill.store.totals import Spread

WINDOW_S = 30.0
_CUT = ("length", "context", "max_turns", "max_tokens", "max_tool_calls", "deadline")
_ENOUGH = 100
"""How many rollouts must have ended before a share of them means something."""


class Sample(NamedTuple):
    """Counts at a moment: rates are differences of two."""

    at: float
    ended: int
    tokens: int
    cpu_s: float
    workers_cpu_s: float


class Warned(Struct, frozen=True):
    """Something that looks wrong: its name for `stop_if`, and a sentence."""

    name: str
    text: str


class Running(Struct, frozen=True):
    """What the collector is doing at the moment."""

    count: int
    most: int
    oldest: Oldest | None
    draining: bool
    follows: bool = False
    waited_s: float | None = None


class Gauge:
    """Hears of every rollout, and once a second of everything else."""

    def __init__(
        self,
        run: str,
        *,
        durability: str,
        fixed: int | None,
        now: Callable[[], Running],
        pressure: Callable[[], Pressure],
        plan: Callable[[], tuple[int | None, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`plan` says how many slots there are, if that is known, and how many had ended before."""
        self._run, self._durability, self._fixed = run, durability, fixed
        self._now, self._pressure, self._plan = now, pressure, plan
        self._clock = clock
        self._began = clock()
        self._samples: deque[Sample] = deque([Sample(self._began, 0, 0, _cpu_s(), 0.0)])
        self._lags: deque[tuple[float, float]] = deque()
        self._recent: deque[bool] = deque(maxlen=_ENOUGH)
        self.ended_count = self.failed = self.tokens = 0
        self.reward = Spread()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cut = self._empty = 0
        self.warnings: dict[str, str] = {}

    # As an observer of the collector.

    def ended(self, entry: Entry) -> None:
        self.ended_count += 1
        self.tokens += entry.input_tokens + entry.output_tokens
        self._recent.append(entry.failure is not None)
        for stage, spent in entry.seconds.items():
            self._seconds[stage] += spent
        if entry.failure is not None:
            self.failed += 1
            return
        self._cut += entry.stop in _CUT
        self._empty += entry.empty
        if entry.reward is not None:
            self.reward.add(entry.reward)

    def retrying(self, entry: Entry, wait_s: float) -> None:
        self.tokens += entry.input_tokens + entry.output_tokens

    # Once a second.

    def tick(self, lag_s: float) -> list[Warned]:
        """Take a sample; what looks wrong since."""
        at = self._clock()
        self._samples.append(Sample(at, self.ended_count, self.tokens, _cpu_s(), self._pressure().workers_cpu_s))
        self._lags.append((at, lag_s))
        for kept in (self._samples, self._lags):
            while len(kept) > 2 and kept[0][0] < at - WINDOW_S:
                kept.popleft()
        found = [warned for warned in self._looks_wrong() if warned.name not in self.warnings]
        self.warnings |= {warned.name: warned.text for warned in found}
        return found

    def snapshot(self, state: str = "") -> Snapshot:
        now, pressure, (planned, held) = self._now(), self._pressure(), self._plan()
        first, last = self._samples[0], self._samples[-1]
        window, elapsed = max(last.at - first.at, 1e-9), max(self._clock() - self._began, 1e-9)
        rate = (last.ended - first.ended) / window
        overall = self.ended_count / elapsed
        cpu = (last.cpu_s - first.cpu_s) / window
        workers_cpu = (last.workers_cpu_s - first.workers_cpu_s) / window / max(1, pressure.workers)
        owed = None if planned is None else max(0, planned - held - self.ended_count)
        pace = rate or overall
        seconds = {stage: spent / self.ended_count for stage, spent in self._seconds.items()} if self._seconds else {}
        evidence = Evidence(seconds, cpu, workers_cpu, usable_cores(), pressure, now.count, self._fixed, elapsed)
        return Snapshot(
            state=state or ("draining" if now.draining else "running"),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            run=self._run,
            pid=os.getpid(),
            host=socket.gethostname(),
            elapsed_s=round(elapsed, 1),
            planned=planned,
            held=held,
            ended=self.ended_count,
            failed=self.failed,
            running=now.count,
            most_running=now.most,
            oldest=now.oldest,
            follows=now.follows,
            waited_s=None if now.waited_s is None else round(now.waited_s, 1),
            rollouts_per_s=round(rate, 3),
            rollouts_per_s_overall=round(overall, 3),
            tokens_per_s=round((last.tokens - first.tokens) / window, 1),
            tokens_per_s_overall=round(self.tokens / elapsed, 1),
            eta_s=round(owed / pace, 1) if owed is not None and pace else None,
            model_calls=pressure.calls,
            model_limit=pressure.limit,
            waiting_calls=pressure.waiting,
            retries=pressure.retries,
            paused=pressure.paused,
            reward_mean=self.reward.mean if self.reward.count else None,
            reward_std=self.reward.deviation if self.reward.count else None,
            rewarded=self.reward.count,
            seconds={stage: round(spent, 6) for stage, spent in seconds.items()},
            cpu_share=round(cpu, 3),
            workers=pressure.workers,
            workers_cpu_share=round(workers_cpu, 3),
            memory_mb=_memory_mb(),
            loop_lag_ms=round(1000 * max((lag for _, lag in self._lags), default=0.0), 1),
            bottleneck=name_bottleneck(evidence) if now.waited_s is None else "",
            warnings=list(self.warnings.values()),
            durability=self._durability,
        )

    def _looks_wrong(self) -> list[Warned]:
        found = []
        rewarded, done = self.reward.count, self.ended_count - self.failed
        if rewarded >= _ENOUGH and self.reward.least == self.reward.most:
            text = f"all {rewarded:,} rewards are {self.reward.least:g}: look at the verification"
            found.append(Warned("equal_rewards", text))
        if done >= _ENOUGH and self._empty > done / 2:
            text = f"{self._empty:,} of {done:,} answers are empty: look at the model, its limits and its template"
            found.append(Warned("empty_answers", text))
        if done >= _ENOUGH and self._cut > done / 4:
            text = f"{self._cut:,} of {done:,} rollouts were cut by a limit: raise max_output_tokens, turns or context"
            found.append(Warned("truncated", text))
        if len(self._recent) == _ENOUGH and sum(self._recent) > _ENOUGH / 4:
            text = f"{sum(self._recent)} of the last {_ENOUGH} slots failed: see failures.ndjson"
            found.append(Warned("failures", text))
        return found


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory_mb() -> float:
    """The most that was ever resident; where the system tells, what is resident."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
            return round(int(file.read().split()[1]) * resource.getpagesize() / 2**20, 1)
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)
