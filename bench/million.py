"""An input of a million rows: how soon it begins, what it holds in memory, and what it takes to come back to it."""

from __future__ import annotations

import time
from pathlib import Path

import measure
import msgspec
from contest import Bench, Work, check, forget, ours, rollmill, say
from measure import MB, MeasurementError, MemoryWatch
from report import Bar, Section, number

STATUS_TIMES = 3
UNIT = 100_000


def million(bench: Bench) -> Section:
    work = Work("single", "single-0", "Boxed", in_flight=128, few=0, many=bench.rows)
    source, out = bench.input(work.kind, bench.rows), bench.folder / "million.jsonl"
    forget(out)
    command = ours()(work, bench.server.url(work.script), source, bench.rows, out)
    log = bench.folder / "million.log"

    say(f"  playing {bench.rows:,} rows")
    bench.server.reset()
    watch = MemoryWatch(lambda: bench.server.stats().requests / UNIT)
    cost = measure.run(command, log, watch.of)
    check(bench, out, bench.rows, bench.rows)
    first = bench.server.stats().first_request - cost.began
    growth = watch.slope(0.1 * bench.rows / UNIT, bench.rows / UNIT)

    say("  the same command again")
    bench.server.reset()
    resumed = MemoryWatch(lambda: 0.0)
    again = measure.run(command, log, resumed.of)
    check(bench, out, bench.rows, 0)

    status = [_status(out, bench.folder / "status.json", bench.rows) for _ in range(STATUS_TIMES)]
    size = out.stat().st_size / MB
    forget(out)
    source.unlink()
    return Section(
        "million",
        f"{bench.rows:,} rows of 2 kB, one turn, 0 ms, 128 in flight; then the same command again, then its status.",
        [
            Bar("first request after the start", [first], 2, unit=" s"),
            Bar("most resident memory", [watch.peak_mb], 300, unit=" MB"),
            Bar("growth of memory for each 100,000 rollouts, after the first tenth", [growth], 1, unit=" MB"),
            Bar("coming back to the finished output", [again.wall_s], 15, unit=" s"),
            Bar("most resident memory of that", [resumed.peak_mb], 500, unit=" MB"),
            Bar("`rollmill status --json` on it", status, 0.5, unit=" s"),
        ],
        ["", "wall s", "CPU s", "rollouts/s", "output MB"],
        [
            ["collecting", *map(number, (cost.wall_s, cost.cpu_s, bench.rows / cost.wall_s, size))],
            ["again", number(again.wall_s), number(again.cpu_s), "", ""],
        ],
    )


def _status(out: Path, answer: Path, rows: int) -> float:
    """How long somebody waits for the command. Raises `MeasurementError` if it knows another count."""
    began = time.perf_counter()
    measure.run([rollmill(), "status", out, "--json"], answer)
    wall = time.perf_counter() - began
    if rows not in msgspec.json.decode(answer.read_bytes()).values():
        raise MeasurementError(f"rollmill status does not know of {rows} rollouts: {answer.read_text()[:500]}")
    return wall
