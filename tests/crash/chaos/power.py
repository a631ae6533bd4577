"""Power cuts: what was not synced is gone."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tests.crash.chaos.small import OUTPUTS, SCRIPT, Small, operations
from tests.crash.chaos.trial import Attempt, Outcome, Outcomes, Place, Trial, recovered
from tests.crash.check import check, check_kept, check_rework, look, violations
from tests.crash.command import Running, acknowledged
from tests.crash.lives import check_death

ASSERTED = """\
Beside the folder of a run there is a shadow of it, with each file as it was synced last. The run is killed, and the
folder becomes its shadow; every other time SQLite's files stay as they were, as chance may have it. With
`durability=power`, at every operation of a small run with one rollout at a time: every rollout but the last that was
begun is there, because a rollout holds its place until it is on the disk, and so is what was shown as done (I2). By
default, at moments of a longer run that are drawn: what was in the file a second before is there. Either way what is
left is whole (I1, I3), and the same command goes on until done (I1, I2)."""
PART = "power"
FEW = 6
MANY = 60
DEFAULT_CUTS = 48
LAST_MOMENT_S = 1.0
"""A sync begins 200 ms after the last one at the latest; the rest is the machine's."""
_LOOK_EVERY_S = 0.02


def power(trial: Trial) -> tuple[Outcomes, list[str]]:
    attempts: dict[str, Attempt] = {}
    for output in OUTPUTS:
        numbers = [one.number for one in operations(trial, PART, output, "+durability=power", rows=FEW, concurrency=1)]
        for number in trial.some(numbers):
            attempts[f"power {output} {number}"] = partial(nothing_is_lost, output=output, number=number)
    powerful = trial.play(PART, attempts, **SCRIPT)
    lately: dict[str, Attempt] = {}
    for output in OUTPUTS:
        for number in range(trial.count(DEFAULT_CUTS // 2)):
            lately[f"os {output} {number}"] = partial(the_last_moment, output=output)
    default = trial.play(PART, lately, **SCRIPT, latency_s=0.1)
    both = Outcomes(powerful.survived + default.survived, powerful.failures + default.failures)
    lost, lost_s = (max(default.measured(name), default=0) for name in ("lost", "lost_s"))
    notes = [
        f"`power`: {len(powerful.survived)} of {powerful.count} cuts lost nothing",
        f"by default: {default.count} cuts lost at most {lost:.0f} rollouts, of the last {lost_s:.2f} s",
    ]
    return both, notes


def nothing_is_lost(place: Place, *, output: str, number: int) -> Outcome:
    small = Small(place.folder, place.server.url, output, "+durability=power", rows=FEW, concurrency=1)
    collect, disk = small.collect, small.disk
    running = collect.start(env=disk.shadowed(KILL_AT=number))
    code = running.wait().code
    assert code in (-9, 0), running.said
    begun = {one.number for one in place.asked}
    disk.lose_power(keep="index" if number % 2 else "")
    there = look(collect.output, finished=False).ended
    least = len(begun) if code == 0 else len(begun) - 1
    assert there >= least, f"I2: {len(begun)} rollouts were begun one after the other, and {there} are there"
    held = check_death(collect, running, small.rows, 1, [])
    collect.finish()
    found = check(collect.output, small.rows)
    check_kept(held, collect.lines())
    asked = place.asked
    return Outcome(check_rework(asked, found, allowed=1, turns=1), recovered(asked, collect.started[-1]))


def the_last_moment(place: Place, *, output: str) -> Outcome:
    small = Small(place.folder, place.server.url, output, rows=MANY, concurrency=4)
    collect, disk = small.collect, small.disk
    running = collect.start(env=disk.shadowed())
    sizes = Sizes(collect.output)
    sizes.watch(running, place.chance.uniform(0.3, 2.2))
    running.process.kill()
    code = running.wait().code
    killed_at = time.monotonic()
    before = collect.output.read_bytes() if collect.output.exists() else b""
    rewarded = len(look(collect.output, finished=False).rewarded)
    disk.lose_power(keep=place.chance.choice(("", "index")))
    left = collect.output.read_bytes() if collect.output.exists() else b""
    assert before.startswith(left), "I3: what is left is not what was written first"
    lost_s = sizes.lost_s(len(left), killed_at)
    assert lost_s <= LAST_MOMENT_S, f"I2: lost is what was in the file {lost_s:.2f} s before"
    found = look(collect.output, finished=False)
    assert violations(collect.output, small.rows, finished=False) == []
    if code == 0:
        assert acknowledged(running.said) <= found.ended, "I2: it had ended, and something is lost"
    held = collect.lines()
    collect.finish()
    check(collect.output, small.rows)
    check_kept(held, collect.lines())
    lost = rewarded - len(found.rewarded)
    return Outcome(None, recovered(place.asked, collect.started[-1]), {"lost": lost, "lost_s": lost_s})


class Sizes:
    """How large a file was, and when."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: list[tuple[float, int]] = []

    def watch(self, running: Running, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and running.process.poll() is None:
            at = time.monotonic()
            if self._path.exists() and (not self.seen or self._path.stat().st_size > self.seen[-1][1]):
                self.seen.append((at, self._path.stat().st_size))
            time.sleep(_LOOK_EVERY_S)

    def lost_s(self, left: int, at: float) -> float:
        """How long what is lost had been there."""
        return max((at - seen for seen, size in self.seen if size > left), default=0.0)
