"""A profile as one page of text: the stages with what to change, then the functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from rollmill.profiling.advice import BUSY, MOST, advice, held_advice, percent, queue_advice
from rollmill.profiling.functions import table
from rollmill.profiling.profile import Measured
from rollmill.profiling.spans import FOR_A_PROCESS, HELD, Span, Stages, whole

_ROLLOUT = "rollout"
_STAGES = ("queue", "setup", "model", "tools", "agent", "verify", "store")
_NOT_SHOWN = ("play", HELD)
"""Playing is the model, the tools and the agent; what is held has a column."""
_BETWEEN_CALLS = ("permit", "rate", "pause", "backoff")
_LABELS = {"tools": "tool"}
_NAMED = ("tools", "verify")
"""Their parts were written by the author of the environment, who is told which it is."""
_HEADER = ("stage", "count", "p50", "p95", "max", "total", "share", "held")


class Row(Struct, frozen=True):
    """One line of the table of stages."""

    label: str
    span: Span
    share: float
    held: Span | None = None

    def cells(self) -> tuple[str, ...]:
        one = self.span
        # What is left when others are taken away was never measured by itself.
        times = (one.quantile(0.5), one.quantile(0.95), one.most_s) if one.count else ()
        shown = [f"{one.count:,}", *map(_time, times)] if one.count else [""] * 4
        held = _time(self.held.total_s) if self.held is not None else ""
        return (self.label, *shown, _time(one.total_s), f"{100 * self.share:.1f} %", held)


def page(name: str, measured: Measured, required_str: str = "") -> str:
    """`required_str` chooses functions by their name or file."""
    stages = _with_agent(measured.stages)
    chosen = f", with {required_str!r} in their name or file" if required_str else ""
    return "\n".join(
        (
            f"Profile of {name}: {_of(measured)}",
            f"Change first: {_what_to_change(stages, measured)}" if stages else "Nothing was played.",
            "",
            "Wall time by stage: how long it took from its beginning to its end, waits included; held is how long it "
            "held its process, so that nothing else went on.",
            "",
            _stage_table(stages),
            f"CPU time by function{chosen}: what was computed, on all threads, without waits; what took long above and "
            "is not here was waiting.",
            "tsub is a function's own, ttot with all that it called, tavg = ttot / ncall; in seconds, ordered by ttot.",
            "",
            table(measured.functions, required_str),
        )
    )


def _of(measured: Measured) -> str:
    count = measured.stages.get(_ROLLOUT, {}).get("", Span()).count
    rollouts = f"{count:,} rollout{'' if count == 1 else 's'} in " if count else ""
    processes = f" of {measured.processes} processes together" if measured.processes > 1 else ""
    busy = f", {'the busiest ' if measured.processes > 1 else ''}{percent(measured.cores)} of a core"
    lost = f"; {measured.lost} process{'es' * (measured.lost > 1)} ended before telling all" if measured.lost else ""
    return f"{rollouts}{_time(measured.seconds)}{processes}{busy}{lost}"


# What to change.


def _what_to_change(stages: Stages, measured: Measured) -> str:
    if measured.held > MOST:
        return held_advice(_parts(stages[HELD])[0], measured.held)
    if measured.cores > BUSY:
        return (
            f"the process that plays: {percent(measured.cores)} of a core (profiling is part of it), so that every "
            "stage waits for it; make the first of its functions faster, or use more processes (+workers)"
        )
    shares = {stage: share for stage, share in _shares(stages).items() if stage in _STAGES}
    largest = max(shares, key=lambda stage: shares[stage])
    share, names = shares[largest], stages[largest]
    if largest == "queue":
        return queue_advice(_parts(names)[0], share)
    return advice(largest, share, _most_of(names) if largest in _NAMED else "")


def _most_of(names: Mapping[str, Span]) -> str:
    """The part that is most of a stage, if one is. Waiting comes first: it is in what waits, too."""
    half = whole(names).total_s / 2
    parts = sorted(_parts(names), key=lambda name: name != FOR_A_PROCESS)
    return next((name for name in parts if names[name].total_s > half), "")


def _with_agent(stages: Stages) -> Stages:
    """What playing took beside model calls, waits for them and tools is the agent's own."""
    if "play" not in stages:
        return stages
    waits = sum(one.total_s for why, one in stages.get("queue", {}).items() if why in _BETWEEN_CALLS)
    known = waits + sum(whole(stages.get(stage, {})).total_s for stage in ("model", "tools"))
    # Tools that run side by side take more than the time that passes.
    left = max(0.0, whole(stages["play"]).total_s - known)
    return {**stages, "agent": {"": Span(total_s=left)}}


def _shares(stages: Stages) -> dict[str, float]:
    totals = {stage: whole(names).total_s for stage, names in stages.items()}
    played = totals.get(_ROLLOUT)
    if played is None:
        rollouts = sum(total for stage, total in totals.items() if stage in _STAGES)
    else:
        # Before it begins and after it has ended a rollout waits, too.
        around = sum(one.total_s for why, one in stages.get("queue", {}).items() if why not in _BETWEEN_CALLS)
        rollouts = played + around + totals.get("store", 0.0)
    return {stage: total / (rollouts or 1.0) for stage, total in totals.items()}


# The table.


def _stage_table(stages: Stages) -> str:
    rows = [_HEADER, *(row.cells() for row in _rows(stages))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    label, *cells = row
    numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
    return "  ".join((label.ljust(widths[0]), *numbers)).rstrip() + "\n"


def _rows(stages: Stages) -> Iterator[Row]:
    """Rollouts first, then their stages, each with its parts under it, what took most first."""
    shares, held = _shares(stages), stages.get(HELD, {})
    shown = [stage for stage in stages if stage not in _NOT_SHOWN]
    for stage in sorted(shown, key=lambda stage: (stage != _ROLLOUT, -shares[stage])):
        span, parts = whole(stages[stage]), _parts(stages[stage])
        if parts and len(stages[stage]) == 1:
            yield Row(_label(stage, parts[0]), span, shares[stage], held.get(_label(stage, parts[0])))
            continue
        yield Row(stage, span, shares[stage], held.get(stage))
        for name in parts:
            label, part = _label(stage, name), stages[stage][name]
            share = shares[stage] * part.total_s / (span.total_s or 1.0)
            yield Row(f"  {label}", part, share, held.get(label))


def _label(stage: str, name: str) -> str:
    return f"{_LABELS.get(stage, stage)} {name}"


def _parts(names: Mapping[str, Span]) -> list[str]:
    return sorted((name for name in names if name), key=lambda name: -names[name].total_s)


def _time(seconds: float) -> str:
    """Three digits or so, with their unit."""
    if seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:,.2f} s"
