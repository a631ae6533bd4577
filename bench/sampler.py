"""Runs the command, and asks as often as the clock ticks where its CPU goes: `sampler.py RESULT.json collect …`.

A sample belongs to the innermost function of the package, with all that it calls elsewhere. What the event loop and the
kernel do between two callbacks falls to the callback that follows.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec

import rollmill
from rollmill.cli.main import run

PACKAGE = f"{Path(rollmill.__file__).parent}/"
ELSEWHERE = "outside of the package"
EVERY_S = 0.001


def place(frame: FrameType | None) -> str | None:
    """The module and the function that a sample belongs to; nothing while modules are imported."""
    found = ELSEWHERE
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename != __file__:
            return None
        if found == ELSEWHERE and code.co_filename.startswith(PACKAGE):
            found = f"{code.co_filename.removeprefix(PACKAGE)} {code.co_name}"
        frame = frame.f_back
    return found


def main() -> int:
    result, *words = sys.argv[1:]
    samples: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        if (where := place(frame)) is not None:
            samples[where] += 1

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    # The command says how to repeat it by its own words.
    sys.argv = ["rollmill", *words]
    code = run(words)
    signal.setitimer(signal.ITIMER_PROF, 0)
    Path(result).write_bytes(msgspec.json.encode(samples))
    return code


if __name__ == "__main__":
    sys.exit(main())
