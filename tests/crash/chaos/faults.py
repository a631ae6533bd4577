"""A model of whose answers a fifth is a fault."""

from __future__ import annotations

import json
from functools import partial

from tests.crash.chaos.trial import Outcome, Outcomes, Place, Trial, recovered
from tests.crash.check import check, check_metrics, check_waits, retries_for_each_answer
from tests.crash.command import Collect
from tests.crash.rows import errands, write_rows

ASSERTED = """\
2,000 tasks four times each, 256 at once, with one worker and with two, while a fifth of all model calls ends in a 429
with and without `Retry-After`, 500, 503, a reset, a stall, silence, or nonsense. Every slot is in the output or
failed for good, once (I1); no failure has a reward, and the mean is over the rewarded (I7); at most 1.2 retries for
each answer, and nobody who was asked to wait came back before (I10); fewer than 3 % of the slots failed."""
PART = "faults"
TASKS, REPEATS = 2000, 4
FAULTS = {"429": 0.04, "429-seconds": 0.01, "500": 0.04, "503": 0.01, "reset": 0.04, "stall": 0.01, "silent": 0.01}
GARBAGE = {"malformed": 0.01, "truncated": 0.01, "schema": 0.01, "nan": 0.01}
SHORT = {"connect_s": 1.0, "first_byte_s": 1.0, "idle_s": 1.0, "total_s": 3.0}
MOST_RETRIES = 1.2
MOST_FAILED = 0.03


def faults(trial: Trial) -> tuple[Outcomes, list[str]]:
    tasks = trial.count(TASKS, least=50)
    attempts = {f"{workers} workers": partial(attempt, tasks=tasks, workers=workers) for workers in (1, 2)}
    script = {"turns": 1, "latency_s": 0.02, "spread": 0.5, "retry_after_s": 0.5, "seed": trial.seed}
    # One after the other: a busy machine would be a fault of another kind.
    outcomes = trial.play(PART, attempts, lanes=1, **script, faults=FAULTS | GARBAGE)
    retries, failed = (max(outcomes.measured(name), default=0) for name in ("retries", "failed"))
    return outcomes, [f"{tasks * REPEATS:,} rollouts each: {retries:.2f} retries an answer, {failed:.0f} slots failed"]


def attempt(place: Place, *, tasks: int, workers: int) -> Outcome:
    rows = errands(tasks)
    write_rows(place.folder / "rows.jsonl", rows)
    # A seed makes every slot's request another, so that each can be told from the others.
    words = ("--repeats", str(REPEATS), "+num_repeats_add_seed=true", f"+workers={workers}")
    collect = Collect(place.folder, place.server.url, *words, concurrency=256, deadlines=SHORT)
    ended = collect.run(timeout=300)
    assert ended.code in (0, 1), ended.err
    found = check(collect.output, rows, REPEATS)
    assert (ended.code == 1) == bool(found.finals), f"exit code {ended.code} with {len(found.finals)} failed slots"
    assert len(found.finals) <= tasks * REPEATS * MOST_FAILED, f"{len(found.finals)} slots failed"
    asked = place.asked
    faulty = sum(not one.answered for one in asked) / len(asked)
    assert 0.15 < faulty < 0.25, f"{100 * faulty:.0f} % of the calls were faulty, and not a fifth"
    retries = retries_for_each_answer(asked, found)
    assert retries <= MOST_RETRIES, f"I10: {retries:.2f} retries for each answer"
    assert check_waits(asked) > 0, "nobody was asked to wait"
    check_metrics(found, json.loads((collect.run_folder / "metrics.json").read_bytes()))
    assert collect.none_left(), collect.left_behind()
    return Outcome(None, recovered(asked, collect.started[0]), {"retries": retries, "failed": len(found.finals)})
