"""A collection that is killed again and again, and watched at every death."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from tests.crash.check import check, check_kept, look, violations
from tests.crash.command import Collect, Running, acknowledged


def survive(collect: Collect, rows: Sequence[dict[str, Any]], repeats: int, moments: Iterable[float]) -> int:
    """Kill it that long after each start, and let it end at last; every promise is looked at after every kill.

    How often it was killed: a run that ends before its moment is the last.
    """
    kills, held = 0, collect.lines()
    for moment in moments:
        running = collect.start()
        time.sleep(moment)
        if running.process.poll() is not None:
            assert running.wait().code == 0, running.said
            break
        running.kill()
        kills += 1
        held = check_death(collect, running, rows, repeats, held)
    else:
        collect.finish()
    check(collect.output, rows, repeats)
    check_kept(held, collect.lines())
    assert collect.none_left(), collect.left_behind()
    return kills


def check_death(
    collect: Collect, running: Running, rows: Sequence[dict[str, Any]], repeats: int, held: Sequence[bytes]
) -> list[bytes]:
    """What must be true a moment after a kill; the lines that are there."""
    broken = violations(collect.output, rows, repeats, finished=False)
    assert not broken, "\n".join(broken[:20])
    said, there = acknowledged(running.said), look(collect.output, finished=False).ended
    assert said <= there, f"I2: {said} were shown as done, and {there} are there"
    lines = collect.lines()
    check_kept(held, lines)
    return lines
