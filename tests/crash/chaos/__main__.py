"""`python -m tests.crash.chaos [PART ...]`: all parts by default; exit code 1 if anything failed."""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.conftest import ROOT
from tests.crash.chaos import compound, faults, full, kills, power, recovery, soak, torn, writes
from tests.crash.chaos.report import Result, summary, write
from tests.crash.chaos.trial import Failure, Outcomes, Trial, say

Part = Callable[[Trial], tuple[Outcomes, list[str]]]
PARTS: dict[str, tuple[Part, str]] = {
    "kills": (kills.kills, kills.ASSERTED),
    "writes": (writes.writes, writes.ASSERTED),
    "recovery": (recovery.recovery, recovery.ASSERTED),
    "torn": (torn.torn, torn.ASSERTED),
    "full": (full.full, full.ASSERTED),
    "power": (power.power, power.ASSERTED),
    "faults": (faults.faults, faults.ASSERTED),
    "compound": (compound.compound, compound.ASSERTED),
    "soak": (soak.soak, soak.ASSERTED),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.chaos", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, help="of everything that is left to chance; a new one by default")
    parser.add_argument("--scale", type=float, default=1.0, help="try so much less, for a trial (%(default)s)")
    parser.add_argument("--only", default="", metavar="NAME", help="make this attempt alone")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "chaos", help="for runs, and for failed ones")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "crash" / "chaos.md", help="(%(default)s)")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    trial = Trial(given.folder.resolve(), seed, given.scale, given.only)
    say(f"seed {seed}")
    results = []
    for part in given.parts or PARTS:
        results.append(_played(part, trial))
        if not given.only:
            write(results[-1], given.results, list(PARTS))
    print(summary(results))
    return 0 if all(result.passed for result in results) else 1


def _played(name: str, trial: Trial) -> Result:
    part, asserted = PARTS[name]
    began = time.monotonic()
    say(f"{name}: begins")
    try:
        outcomes, notes = part(trial)
    except Exception:  # noqa: BLE001
        text = traceback.format_exc()
        say(f"{name}: FAILED before its attempts\n{text}")
        failure = Failure("before its attempts", text, trial.folder / name, trial.again(name, ""))
        outcomes, notes = Outcomes(failures=[failure]), []
    result = Result(name, asserted, outcomes, time.monotonic() - began, [*notes, f"seed {trial.seed}"])
    say(f"{name}: {len(outcomes.survived)} of {outcomes.count} survived, {result.took_s:.0f} s")
    return result


if __name__ == "__main__":
    sys.exit(main())
