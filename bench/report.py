"""What was measured, against what was asked for, as one section of `results.md` for each part."""

from __future__ import annotations

import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[1]
TITLE = "# Results\n\nWritten by `bench/run.py`, a section for each part; [README](README.md) says how to read it.\n"


class Bar(Struct, frozen=True):
    """A number that was asked for, and what it was in each round."""

    name: str
    values: Sequence[float]
    asked: float
    at_least: bool = False
    unit: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def passed(self) -> bool:
        return self.median >= self.asked if self.at_least else self.median <= self.asked

    def row(self) -> list[str]:
        spread = f"{number(min(self.values))} to {number(max(self.values))}" if len(self.values) > 1 else ""
        asked = f"{'≥' if self.at_least else '≤'} {self.asked:g}{self.unit}"
        return [self.name, number(self.median) + self.unit, spread, asked, "PASS" if self.passed else "MISSED"]


class Section(Struct, frozen=True):
    """What one part measured: the bars, and beside them what they were made of."""

    part: str
    about: str
    bars: list[Bar]
    header: list[str]
    rows: list[list[str]]

    def text(self) -> str:
        tables = [table(self.header, self.rows)]
        if self.bars:
            tables.insert(0, table(["bar", "measured", "spread", "asked", ""], [bar.row() for bar in self.bars]))
        return "\n\n".join([f"## {self.part}", self.about, circumstances(), *tables])


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """The median of several rounds, with the least and the most of them."""
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def circumstances(command: str = "") -> str:
    """When, where and of what; by default of the command that this is."""
    versions = [f"{name} {metadata.version(name)}" for name in ("rollmill", "aiohttp", "msgspec", "uvloop")]
    return " · ".join([
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        *versions,
        f"at {_commit()}",
        f"`{command or shlex.join(['bench/run.py', *sys.argv[1:]])}`",
    ])  # fmt: skip


def write(section: Section, path: Path, order: Sequence[str]) -> None:
    """Put a section in the place of its part's last one; those of other parts stay."""
    known = sections(path.read_text("utf-8")) if path.exists() else {}
    known[section.part] = section.text()
    chosen = [known[part].strip() for part in order if part in known]
    path.write_text("\n\n".join([TITLE.strip(), *chosen]) + "\n", "utf-8")


def sections(text: str) -> dict[str, str]:
    """The sections of a page, by their headings."""
    pieces = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    return {piece.partition("\n")[0].removeprefix("## "): piece for piece in pieces}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "no commit"
