"""Everything at once: a faulty model, kills, dead workers, full disks and verifiers that hang."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.measure import MemoryWatch, descendants
from tests.crash.chaos.trial import Attempt, Outcome, Outcomes, Place, Trial, recovered
from tests.crash.check import Found, check, check_kept, check_metrics, check_rework
from tests.crash.command import HERE, Collect, Ended, Running
from tests.crash.lives import check_death
from tests.crash.preload import Disk
from tests.crash.rows import errand, write_rows
from tests.crash.script import Script

ASSERTED = """\
Each round draws what the model does wrong (four faults, each up to a twentieth of its calls), which verifiers hang,
how many workers play, plain or compressed, and five blows: a kill of the command, a kill of one of its workers and
then of the command, a disk that fills up, a model that goes away, or SIGTERM. After every blow, and when all is done:
every slot once (I1), nothing gone (I2), whole lines (I3), little played again (I4), every run over in time and no
process left (I5), memory bounded (I6), the accounts those of the files (I7), and another model refused without a
change (I8)."""
PART = "compound"
ROUNDS = 16
BLOWS = 5
ROWS, REPEATS, CONCURRENCY = 60, 2, 16
HANGS = 2
VERIFIER_S = 2.0
LONGEST_S = 75.0
"""Three attempts at a rollout whose call fails at each deadline, its pauses, and a verifier that hangs."""
MOST_MB = 400.0
"""Of the command, two workers and their verifiers together."""
SHORT = {"connect_s": 1.0, "first_byte_s": 1.0, "idle_s": 1.0, "total_s": 3.0}
FAULTS = ("429", "429-seconds", "500", "503", "reset", "stall", "malformed", "truncated")
_SLOTS = re.compile(r"Slots: ([\d,]+) asked for = ([\d,]+) rewarded.* \+ ([\d,]+) failed \+ ([\d,]+) owed")


class Round:
    """A collection that is dealt blows."""

    def __init__(self, place: Place) -> None:
        self.place, self.chance = place, place.chance
        tempers = ["loops in C"] * HANGS + ["kind"] * (ROWS - HANGS)
        self.chance.shuffle(tempers)
        self.rows = [errand(number, temper=temper) for number, temper in enumerate(tempers)]
        write_rows(place.folder / "rows.jsonl", self.rows)
        self.workers = self.chance.choice((1, 2))
        self.output = self.chance.choice(("out.jsonl", "out.jsonl.zst"))
        self.disk = Disk(place.folder / "disk", place.folder)
        self.collect = self.collection("mock")
        self.story = [f"{self.output}, workers={self.workers}"]
        self.held: list[bytes] = []
        self.kills = 0
        self.memory = MemoryWatch(lambda: 0.0)

    def collection(self, model: str) -> Collect:
        words = ("--repeats", str(REPEATS), f"+workers={self.workers}", "+progress_every_s=0.1")
        return Collect(
            *(self.place.folder, self.place.server.url, *words),
            output=f"disk/{self.output}",
            environment=f"{HERE / 'verifiers.py'}:Pure",
            concurrency=CONCURRENCY,
            deadlines=SHORT,
            model=model,
        )

    def start(self, env: dict[str, str] | None = None) -> Running:
        return self.collect.start(env=env)

    def looked_at(self, running: Running) -> None:
        """What must be true after a blow."""
        assert "Traceback" not in running.said, running.said[-2000:]
        self.held = check_death(self.collect, running, self.rows, REPEATS, self.held)
        assert self.collect.none_left(), f"I5: still there: {self.collect.left_behind()}"


def compound(trial: Trial) -> tuple[Outcomes, list[str]]:
    rounds = range(trial.count(ROUNDS, least=2))
    attempts: dict[str, Attempt] = {f"round {number}": attempt for number in rounds}
    outcomes = trial.play(PART, attempts, turns=1, latency_s=0.1, spread=0.5)
    peak, blows = max(outcomes.measured("peak_mb"), default=0), sum(outcomes.measured("blows"))
    return outcomes, [f"{blows:.0f} blows", f"at most {peak:.0f} MB"]


def attempt(place: Place) -> Outcome:
    one = Round(place)
    try:
        return _played(one)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"after {'; '.join(one.story)}: {error}") from error


def _played(one: Round) -> Outcome:
    shares = {fault: one.chance.uniform(0, 0.05) for fault in one.chance.sample(FAULTS, 4)}
    one.story.append(f"faults {', '.join(f'{name} {share:.3f}' for name, share in shares.items())}")
    script: dict[str, Any] = {"turns": 1, "latency_s": 0.1, "spread": 0.5, "retry_after_s": 0.5, "faults": shares}
    one.place.server.becomes(Script(seed=one.chance.randrange(1000), **script))
    for _ in range(BLOWS):
        one.chance.choice(DEALT)(one)
    ended = _ended(one, one.start())
    one.story.append(f"ended with {ended.code}")
    found = check(one.collect.output, one.rows, REPEATS)
    check_kept(one.held, one.collect.lines())
    check_accounts(ended, found, len(one.rows) * REPEATS)
    check_metrics(found, json.loads((one.collect.run_folder / "metrics.json").read_bytes()))
    _refuses_another_model(one)
    assert one.memory.peak_mb <= MOST_MB, f"I6: {one.memory.peak_mb:.0f} MB"
    return _outcome(one, found)


def _outcome(one: Round, found: Found) -> Outcome:
    asked = one.place.asked
    # An answer whose verifier hung is none that is lost.
    hung = sum(attempt["failure"]["where"] == "verifier" for attempt in found.attempts)
    allowed = one.kills * 2 * CONCURRENCY + hung
    rework = check_rework(asked, found, allowed=allowed, turns=1) - hung
    return Outcome(
        max(0, rework),
        recovered(asked, one.collect.started[-1]),
        {"peak_mb": one.memory.peak_mb, "blows": BLOWS},
    )


# The blows.


def kills_the_command(one: Round) -> None:
    moment = one.chance.uniform(0, 3)
    one.story.append(f"command killed after {moment:.2f} s")
    running = one.start()
    _pass(one, running, moment)
    running.process.kill()
    running.wait(10)
    one.kills += 1
    one.looked_at(running)


def kills_a_worker(one: Round) -> None:
    moment = one.chance.uniform(0.6, 2)
    running = one.start()
    _pass(one, running, moment)
    workers = _workers(running.pid)
    one.story.append(f"{'a worker' if workers else 'no worker there to be'} killed after {moment:.2f} s")
    if workers:
        os.kill(one.chance.choice(workers), signal.SIGKILL)
        one.kills += 1
    _pass(one, running, one.chance.uniform(1, 3))
    one.story.append("then the command")
    running.process.kill()
    running.wait(10)
    one.kills += 1
    one.looked_at(running)


def fills_the_disk(one: Round) -> None:
    number = one.chance.randrange(1, 250)
    one.story.append(f"disk full from operation {number} on")
    running = one.start(one.disk.fails_at(number))
    ended = _ended(one, running, (0, 1, 2))
    one.disk.freed()
    one.kills += ended.code != 0
    one.looked_at(running)


def loses_the_model(one: Round) -> None:
    """Nothing is answered for longer than the run has patience."""
    one.story.append("the model away, outage_s=1")
    usual = one.place.server.script
    one.place.server.becomes(Script(turns=1, faults={"reset": 1.0}))
    running = one.collect.start("+outage_s=1")
    _ended(one, running, (0, 1, 2))
    # Verifiers that were at work are stopped with it.
    one.kills += 1
    one.place.server.becomes(usual)
    one.looked_at(running)


def terminates(one: Round) -> None:
    moment = one.chance.uniform(0.5, 3)
    one.story.append(f"SIGTERM after {moment:.2f} s")
    running = one.start()
    _pass(one, running, moment)
    running.signal(signal.SIGTERM)
    _ended(one, running, (0, 1, 143, -signal.SIGTERM))
    one.looked_at(running)


DEALT: tuple[Callable[[Round], None], ...] = (
    kills_the_command,
    kills_a_worker,
    fills_the_disk,
    loses_the_model,
    terminates,
)


def _pass(one: Round, running: Running, seconds: float) -> None:
    with one.memory.of(running.pid):
        end = time.monotonic() + seconds
        while time.monotonic() < end and running.process.poll() is None:
            time.sleep(0.02)


def _ended(one: Round, running: Running, codes: tuple[int, ...] = (0, 1)) -> Ended:
    with one.memory.of(running.pid):
        try:
            ended = running.wait(LONGEST_S)
        except AssertionError as error:
            raise AssertionError(f"I5: {error}") from error
    assert ended.code in codes, f"exit code {ended.code}: {ended.err[-2000:]}"
    return ended


def _workers(pid: int) -> list[int]:
    found = []
    for one in descendants(pid):
        # It may have ended since.
        with suppress(OSError):
            if b"rollmill.engines.program" in Path(f"/proc/{one}/cmdline").read_bytes():
                found.append(one)
    return found


def check_accounts(ended: Ended, found: Found, planned: int) -> None:
    """I7: what the run says at its end is what is in the files."""
    said = _SLOTS.search(ended.out)
    assert said, f"I7: no account of the slots in {ended.out[-500:]!r}"
    numbers = [int(number.replace(",", "")) for number in said.groups()]
    there = [planned, len(found.rewarded), len(found.finals), 0]
    assert numbers == there, f"I7: it says {numbers}, and there are {there}"
    assert (ended.code == 1) == bool(found.finals), f"I7: exit code {ended.code} with {len(found.finals)} failed"


def _refuses_another_model(one: Round) -> None:
    """I8: and changes nothing."""
    before = one.collect.output.read_bytes()
    ended = one.collection("another").run("--repeats", str(REPEATS + 1))
    assert ended.code == 2, f"I8: another model was let in, exit code {ended.code}"
    assert "model" in ended.err, f"I8: it does not say what differs: {ended.err[-500:]}"
    assert one.collect.output.read_bytes() == before, "I8: the output has changed"
