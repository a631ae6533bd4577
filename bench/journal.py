"""The share of a rollout's CPU that goes into recording it exactly once."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import measure
import msgspec
from contest import Bench, Work, contest, count_lines, forget, ours, say
from measure import MeasurementError
from msgspec import Struct
from report import Bar, Section, spread

RECORDING = Path(__file__).with_name("recording.py")


class Taken(Struct, frozen=True):
    """What one rollout took."""

    cpu_ms: float
    planning_ms: float


def journal(bench: Bench) -> Section:
    work = Work("single", "single-0", "Boxed", 128, few=2_000, many=32_000)
    whole = [rate.cpu_ms for rate in contest(bench, work, {"rollmill": ours()})["rollmill"]]
    kept: list[Taken] = []
    thrown: list[Taken] = []
    for turn in range(bench.rounds):
        kept.append(_taken(bench, round(bench.scale * work.many), bench.folder / "recording.jsonl"))
        thrown.append(_taken(bench, round(bench.scale * work.many)))
        say(f"  {turn + 1}. recorded: {kept[-1].cpu_ms:.4f} ms of CPU each, thrown away: {thrown[-1].cpu_ms:.4f}")
    cost = [one.cpu_ms - other.cpu_ms for one, other in zip(kept, thrown, strict=True)]
    shares = [100 * one / statistics.median(whole) for one in cost]
    return Section(
        "journal",
        "Rollouts of one turn that were played before, encoded and recorded with journal, ledger and index, against "
        "the same encoded and written to /dev/null. The share is that of a whole rollout at 128 in flight.",
        [Bar("CPU of recording, share of a rollout's", shares, 15, unit=" %")],
        ["", "CPU ms a rollout"],
        [
            ["the whole rollout", spread(whole)],
            ["encoded and recorded", spread([one.cpu_ms for one in kept])],
            ["of which planning: the ledger, and new tasks in the index", spread([one.planning_ms for one in kept])],
            ["encoded and thrown away", spread([one.cpu_ms for one in thrown])],
        ],
    )


def _taken(bench: Bench, rollouts: int, out: Path | None = None) -> Taken:
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
    return msgspec.json.decode(log.read_bytes(), type=Taken)
