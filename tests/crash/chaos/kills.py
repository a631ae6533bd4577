"""`kill -9` at any moment of a run's life."""

from __future__ import annotations

import itertools
import shutil
import time
from functools import partial
from pathlib import Path

from tests.crash.chaos.trial import Attempt, Outcome, Outcomes, Place, Trial, recovered, say
from tests.crash.check import check, check_rework, check_same, look
from tests.crash.command import Collect
from tests.crash.lives import survive
from tests.crash.rows import errands, write_rows
from tests.crash.served import served

ASSERTED = """\
Each run is killed with `kill -9` at a moment drawn evenly from the length of an undisturbed run, start and shutdown
included, and then gone on with until it is done; every combination of plain and compressed output, one worker and
two, and the three values of `durability`. At the kill and at the end: no slot twice or missing and none that nobody
asked for (I1), nothing gone that was in the file or was shown as done (I2), every line whole JSON (I3), no more
rollouts played again than were in flight (I4), and at the end the slots, inputs, seeds, indices and rewards of the
undisturbed run (I9), and no process left."""
PART = "kills"
KILLS = 200
ROWS, REPEATS, CONCURRENCY = 100, 2, 16
AHEAD = 2 * 32
"""Where others play, what has ended and is on its way to the file holds no place: two workers' leases at most."""
SCRIPT = {"latency_s": 0.05, "spread": 0.5}

COMBINATIONS = list(
    itertools.product(("out.jsonl", "out.jsonl.zst"), (1, 2), ("process", "os", "power")),
)


class Undisturbed:
    """A run of one combination that nobody killed."""

    def __init__(self, collect: Collect) -> None:
        began = time.monotonic()
        collect.finish()
        self.took_s = time.monotonic() - began
        self.found = check(collect.output, errands(ROWS), REPEATS)


def kills(trial: Trial) -> tuple[Outcomes, list[str]]:
    folder = trial.scratch(PART, "undisturbed")
    with served(folder, **SCRIPT) as server:
        models = {
            one: Undisturbed(collection(folder / "-".join(map(str, one)), server.url, *one)) for one in COMBINATIONS
        }
    longest = max(one.took_s for one in models.values())
    say(f"{PART}: undisturbed runs take up to {longest:.1f} s")
    attempts: dict[str, Attempt] = {}
    for number, one in zip(range(trial.count(KILLS)), itertools.cycle(COMBINATIONS)):
        output, workers, durability = one
        attempts[f"{number} {output} {workers} {durability}"] = partial(attempt, combination=one, like=models[one])
    outcomes = trial.play(PART, attempts, **SCRIPT)
    moments = sorted(outcomes.measured("killed_at"))
    notes = [f"kills {moments[0]:.2f} to {moments[-1]:.2f} s after the start"] if moments else []
    return outcomes, notes


def attempt(place: Place, *, combination: tuple[str, int, str], like: Undisturbed) -> Outcome:
    rows = errands(ROWS)
    while True:
        collect = collection(place.folder / "run", place.server.url, *combination)
        began = time.monotonic()
        moment = place.chance.uniform(0, like.took_s)
        try:
            killed = survive(collect, rows, REPEATS, [moment])
        except AssertionError as error:
            raise AssertionError(f"killed {moment:.3f} s after its start: {error}") from error
        asked = [one for one in place.asked if one.at >= began]
        if killed:
            break
        # It was faster this time, and had ended.
        shutil.rmtree(collect.folder)
    found = look(collect.output)
    check_same(found, like.found)
    allowed = CONCURRENCY + (AHEAD if combination[1] > 1 else 0)
    rework = check_rework(asked, found, allowed=killed * allowed)
    return Outcome(rework, recovered(asked, collect.started[-1]), {"killed_at": moment})


def collection(folder: Path, url: str, output: str, workers: int, durability: str) -> Collect:
    folder.mkdir(parents=True)
    write_rows(folder / "rows.jsonl", errands(ROWS))
    words = ["--repeats", str(REPEATS), "+num_repeats_add_seed=true", f"+durability={durability}"]
    words += ["+progress_every_s=0.1", f"+workers={workers}"]
    return Collect(folder, url, *words, output=output, concurrency=CONCURRENCY)
