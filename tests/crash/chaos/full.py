"""Disks that take no more from the n-th write on."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from functools import partial

from tests.crash.chaos.small import CONCURRENCY, OUTPUTS, SCRIPT, Small, operations
from tests.crash.chaos.trial import Attempt, Outcome, Outcomes, Place, Trial, recovered
from tests.crash.check import check, check_kept, check_rework
from tests.crash.command import Ended
from tests.crash.lives import check_death

ASSERTED = """\
From the n-th operation of a small run on, whatever writes below its folder fails: with ENOSPC for every n and for
plain and compressed outputs, with EDQUOT, EIO and EROFS for every second. The run ends by itself within 10 s, with
exit code 1 (2 where its output could not even be opened) and a message that names the error, without a traceback; or
with 0, if all is recorded and only what SQLite cleans up was left undone. Nothing is spoiled (I1, I2, I3). When there
is room again the same command goes on until done, and plays nothing again that was recorded (I1, I2, I4)."""
PART = "full"
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
LONGEST_S = 10.0
NEEDS_NO_ROOM = ("unlink",)


def full(trial: Trial) -> tuple[Outcomes, list[str]]:
    attempts: dict[str, Attempt] = {}
    traced = {output: operations(trial, PART, output) for output in OUTPUTS}
    for error in ERRORS:
        # What is compressed differs in how it is written, not in how it fails.
        for output in OUTPUTS if error == errno.ENOSPC else OUTPUTS[:1]:
            numbers = [one.number for one in traced[output] if one.kind not in NEEDS_NO_ROOM]
            for number in trial.some(numbers if error == errno.ENOSPC else numbers[::2]):
                name = f"{output} {number} {errno.errorcode[error]}"
                attempts[name] = partial(attempt, output=output, number=number, error=error)
    outcomes = trial.play(PART, attempts, **SCRIPT)
    took = outcomes.measured("took_s")
    codes = Counter(outcomes.measured("code"))
    ends = ", ".join(f"{count} with exit code {code:.0f}" for code, count in sorted(codes.items()))
    return outcomes, [f"ended within {max(took, default=0):.1f} s: {ends}"]


def attempt(place: Place, *, output: str, number: int, error: int) -> Outcome:
    small = Small(place.folder, place.server.url, output)
    collect = small.collect
    began = time.monotonic()
    running = collect.start(env=small.disk.fails_at(number, error))
    ended = running.wait(2 * LONGEST_S)
    took = time.monotonic() - began
    assert took < LONGEST_S, f"it took {took:.1f} s to end"
    check_said(ended, error)
    if ended.code == 0:
        check(collect.output, small.rows)
    held = check_death(collect, running, small.rows, 1, [])
    small.disk.freed()
    collect.finish()
    found = check(collect.output, small.rows)
    check_kept(held, collect.lines())
    asked = place.asked
    rework = check_rework(asked, found, allowed=CONCURRENCY, turns=1)
    return Outcome(rework, recovered(asked, collect.started[-1]), {"took_s": took, "code": ended.code})


def check_said(ended: Ended, error: int) -> None:
    """It says clearly what is wrong."""
    assert ended.code in (0, 1, 2), f"exit code {ended.code}"
    assert "Traceback" not in ended.err, ended.err[-2000:]
    if ended.code:
        assert os.strerror(error) in ended.err or "disk" in ended.err, f"it does not say why: {ended.err[-500:]}"
