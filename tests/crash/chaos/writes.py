"""A kill at every write boundary."""

from __future__ import annotations

from functools import partial

from tests.crash.chaos.small import CONCURRENCY, OUTPUTS, SCRIPT, WRITES, Small, operations
from tests.crash.chaos.trial import Attempt, Outcome, Outcomes, Place, Trial, recovered
from tests.crash.check import check, check_kept, check_rework
from tests.crash.lives import check_death

ASSERTED = """\
A small run is traced first: every `write`, `pwrite`, `open` for writing, `fsync`, `rename`, `truncate` and `unlink`
below its folder, SQLite's included. Then it is killed before each of them, and again in the middle of each that
writes, with half of the bytes written; and gone on with until done. At the kill and at the end: I1, I2, I3, and I4
with what was in flight; no process left. Outputs are plain and compressed."""
PART = "writes"


def writes(trial: Trial) -> tuple[Outcomes, list[str]]:
    attempts: dict[str, Attempt] = {}
    notes = []
    for output in OUTPUTS:
        traced = operations(trial, PART, output)
        notes.append(f"{output}: {len(traced)} operations")
        moments = [(one.number, half) for one in traced for half in (False, True) if not half or one.kind in WRITES]
        for number, half in trial.some(moments):
            name = f"{output} {number}{' half' if half else ''}"
            attempts[name] = partial(attempt, output=output, number=number, half=half)
    outcomes = trial.play(PART, attempts, **SCRIPT)
    unharmed = outcomes.measured("unharmed")
    notes.append(f"{sum(unharmed):.0f} runs had ended before their operation")
    return outcomes, notes


def attempt(place: Place, *, output: str, number: int, half: bool) -> Outcome:
    small = Small(place.folder, place.server.url, output)
    collect = small.collect
    running = collect.start(env=small.disk.kills_at(number, half=half))
    code = running.wait().code
    # Groups are committed as time goes: another run may have an operation less.
    assert code in (-9, 0), running.said
    held = check_death(collect, running, small.rows, 1, [])
    collect.finish()
    found = check(collect.output, small.rows)
    check_kept(held, collect.lines())
    assert collect.none_left(), collect.left_behind()
    asked = place.asked
    rework = check_rework(asked, found, allowed=CONCURRENCY, turns=1)
    return Outcome(rework, recovered(asked, collect.started[-1]), {"unharmed": code == 0})
