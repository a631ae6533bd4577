"""Names what holds a collection up, in one sentence, with what to change."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rollmill.collection.worker import Pressure
from rollmill.profiling.advice import BUSY, MOST, advice

_SETTLED_S = 5.0


class Evidence(Struct, frozen=True):
    """What was measured."""

    seconds: Mapping[str, float]
    """Seconds a rollout, by stage."""
    cpu_share: float
    """How much of a core the command's own process takes; and each of its workers, where there are some."""
    workers_cpu_share: float
    cores: int
    pressure: Pressure
    running: int
    fixed: int | None
    """How many rollouts may run at once, where that was told."""
    elapsed_s: float


def name_bottleneck(seen: Evidence) -> str:
    """Nothing, while there is too little to say."""
    if seen.pressure.paused:
        return f"the model: {seen.pressure.paused}"
    if seen.elapsed_s < _SETTLED_S or not seen.seconds:
        return ""
    if seen.pressure.workers:
        if busy := _processes(seen):
            return busy
    elif seen.cpu_share > BUSY:
        return f"this process: {_busy(seen.cpu_share, seen)}; {_more_workers(seen, 2)}"
    share = _shares(seen.seconds)
    return _stage(share) or _model(seen, share["model"])


def _stage(share: Mapping[str, float]) -> str:
    """What takes most of a rollout's time, unless it is the model."""
    longest = max(share, key=lambda stage: share[stage])
    if share[longest] <= MOST or longest == "model":
        return ""
    return advice(longest, share[longest])


def _processes(seen: Evidence) -> str:
    """What the command's own process and its workers leave of the cores, if it is too little."""
    count = seen.pressure.workers
    if seen.cpu_share > BUSY:
        return (
            f"the process that plans and records: {100 * seen.cpu_share:.0f} % of a core; split the input between "
            "several commands, and join their outputs with rollmill merge"
        )
    if seen.workers_cpu_share > BUSY:
        return f"the workers: {_busy(seen.workers_cpu_share, seen)} each; {_more_workers(seen, count + 1)}"
    if seen.cpu_share + count * seen.workers_cpu_share > BUSY * seen.cores:
        return f"this machine: its {seen.cores} cores are busy; use one with more, or several"
    return ""


def _busy(cpu_share: float, seen: Evidence) -> str:
    share = _shares(seen.seconds)
    culprit = max(("verify", "tools", "setup"), key=lambda stage: share[stage])
    where = (
        f", much of it perhaps in {culprit} ({100 * share[culprit]:.0f} % of the time)" if share[culprit] > 0.2 else ""
    )
    return f"{100 * cpu_share:.0f} % of a core{where}"


def _more_workers(seen: Evidence, least: int) -> str:
    if least > seen.cores:
        return f"this machine has no more than {seen.cores}: use one with more, or several"
    return f"use more of them: +workers={least} or more"


def _model(seen: Evidence, share: float) -> str:
    pressure = seen.pressure
    limited = pressure.retries.get("rate_limit", 0)
    if pressure.rate_s > pressure.permit_s and pressure.rate_s > 0:
        return "the rate that limits.models sets: raise it if the provider allows more"
    if limited and pressure.limit is not None and pressure.calls >= 0.8 * pressure.limit:
        return f"the model's rate limit: {limited:,} calls were refused; it takes about {pressure.limit} at once"
    if pressure.limit is not None and pressure.waiting:
        return f"the model: it serves about {pressure.limit} calls at once well; add a replica, or a faster one"
    if seen.fixed is not None and seen.running >= seen.fixed:
        return (
            f"the model: {100 * share:.0f} % of a rollout's time, with all {seen.fixed} places taken; raise "
            "num_samples_in_parallel if it can serve more, or add a replica"
        )
    return f"the model: {100 * share:.0f} % of a rollout's time"


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    stages = {stage: seconds.get(stage, 0.0) for stage in ("setup", "model", "tools", "verify")}
    whole = sum(stages.values()) or 1.0
    return {stage: spent / whole for stage, spent in stages.items()}
