"""What the attempts came to: a table with a row for each part, and a section that says what was asserted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.report import circumstances, sections, table
from msgspec import Struct
from tests.crash.chaos.trial import Outcomes

TITLE = """\
# Chaos

Written by `make chaos`, a section for each part: what was done to `rollmill collect`, and what had to be true of its
files afterwards, by the numbers of their promises. Re-work is rollouts that were played again after a kill; recovery is
from the start of the command that goes on to its first model call."""
_HEADER = ["part", "attempts", "survived", "worst re-work", "worst recovery s", "notes"]


class Result(Struct, frozen=True):
    part: str
    asserted: str
    outcomes: Outcomes
    took_s: float
    notes: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        return bool(self.outcomes.count) and not self.outcomes.failures

    def row(self) -> list[str]:
        found = self.outcomes
        rework = "" if found.rework is None else f"{found.rework:,}"
        recovery = "" if found.recovery_s is None else f"{found.recovery_s:.2f}"
        return [self.part, f"{found.count:,}", f"{len(found.survived):,}", rework, recovery, "; ".join(self.notes)]

    def text(self) -> str:
        command = shlex.join(["python", "-m", "tests.crash.chaos", *sys.argv[1:]])
        pieces = [f"## {self.part}", self.asserted, f"{circumstances(command)} · {self.took_s:,.0f} s"]
        if self.outcomes.failures:
            pieces.append("\n".join(f"- FAILED: {one.name}: `{one.again}`" for one in self.outcomes.failures))
        return "\n\n".join(pieces)


def summary(results: Sequence[Result]) -> str:
    return table(_HEADER, [result.row() for result in results])


def write(result: Result, path: Path, order: Sequence[str]) -> None:
    """Put a part's row and section in the place of its last ones; those of other parts stay."""
    text = path.read_text("utf-8") if path.exists() else ""
    rows, known = _rows(text), sections(text)
    rows[result.part], known[result.part] = result.row(), result.text()
    overview = table(_HEADER, [rows[part] for part in order if part in rows])
    chosen = [known[part].strip() for part in order if part in known]
    path.write_text("\n\n".join([TITLE, overview, *chosen]) + "\n", "utf-8")


def _rows(text: str) -> dict[str, list[str]]:
    """The rows of the table, by their parts."""
    head = text.partition("\n## ")[0]
    cells = [line[2:-2].split(" | ") for line in head.splitlines() if line.startswith("| ")]
    return {row[0]: row for row in cells[2:]}
