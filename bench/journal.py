"""The share of a rollout's CPU that goes into recording it exactly once."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import measure
from contest import Bench, Work, contest, count_lines, forget, ours, say
from measure import MeasurementError
from report import Bar, Section, spread

RECORDING = Path(__file__).with_name("recording.py")
_TIMES = 3
"""Each is short, and the difference of two of them is small."""


def journal(bench: Bench) -> Section:
    work = Work("single", "single-0", "Boxed", 128, few=2_000, many=32_000)
    whole = [rate.cpu_ms for rate in contest(bench, work, {"rollmill": ours()})["rollmill"]]
    kept: list[float] = []
    thrown: list[float] = []
    for turn in range(_TIMES * bench.rounds):
        kept.append(_taken(bench, round(bench.scale * work.many), bench.folder / "recording.jsonl"))
        thrown.append(_taken(bench, round(bench.scale * work.many)))
        say(f"  {turn + 1}. recorded: {kept[-1]:.4f} ms of CPU each, thrown away: {thrown[-1]:.4f}")
    cost = [one - other for one, other in zip(kept, thrown, strict=True)]
    shares = [100 * one / statistics.median(whole) for one in cost]
    return Section(
        "journal",
        "Rollouts of one turn that were played before: planned, encoded and recorded with journal and index (which has "
        "the tasks too), against the same planned without an index, encoded and written to /dev/null. The share is "
        "that of a whole rollout at 128 in flight.",
        [Bar("CPU of journal and index, share of a rollout's", shares, 15, unit=" %")],
        ["", "CPU ms a rollout"],
        [
            ["the whole rollout", spread(whole)],
            ["planned, encoded and recorded", spread(kept)],
            ["planned, encoded and thrown away", spread(thrown)],
        ],
    )


def _taken(bench: Bench, rollouts: int, out: Path | None = None) -> float:
    """The CPU of recording one, or without an output of throwing it away."""
    log = bench.folder / "recording.log"
    given = ["--base-url", bench.server.url("single-0"), "--input", bench.input("single", 1000)]
    if out is not None:
        forget(out)
        given += ["--out", out]
    measure.run([sys.executable, RECORDING, str(rollouts), *given], log)
    if out is not None:
        if (lines := count_lines(out)) != rollouts:
            raise MeasurementError(f"{out} has {lines} lines, and {rollouts} were recorded")
        forget(out)
    return float(log.read_text())
