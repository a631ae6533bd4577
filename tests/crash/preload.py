"""Disks and clocks that misbehave: small C libraries, built when they are needed and preloaded into the command."""

from __future__ import annotations

import errno
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

HERE = Path(__file__).parent


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


@cache
def library(name: str) -> Path:
    """`disk` or `clock`, built once a process."""
    built = Path(mkdtemp(prefix="rollmill-crash-")) / f"{name}.so"
    command = (compiler() or "cc", "-O2", "-shared", "-fPIC", "-o", str(built), str(HERE / f"{name}.c"), "-ldl")
    subprocess.run(command, check=True)
    return built


class Operation(NamedTuple):
    """A line of a disk's trace."""

    number: int
    kind: str
    path: str


class Disk:
    """What happens to the files below one folder; each method is the environment of one run."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder = folder
        self.trace = scratch / "disk.trace"
        self.shadow = scratch / "shadow"
        self.full = scratch / "full"

    def traced(self, **orders: object) -> dict[str, str]:
        self.trace.unlink(missing_ok=True)
        return self._environment(TRACE=self.trace, **orders)

    def kills_at(self, number: int, *, half: bool = False) -> dict[str, str]:
        return self._environment(KILL_AT=number, HALF=int(half))

    def fails_at(self, number: int, error: int = errno.ENOSPC) -> dict[str, str]:
        """Until `freed`."""
        self.full.touch()
        return self._environment(FAIL_AT=number, ERRNO=error, FULL=self.full)

    def freed(self) -> None:
        self.full.unlink()

    def shadowed(self, **orders: object) -> dict[str, str]:
        return self._environment(SHADOW=self.shadow, **orders)

    def lose_power(self, *, keep: str = "") -> None:
        """What was not synced is gone; a file of the name `keep` stays as it was, as chance may have it."""
        kept = {path: path.read_bytes() for path in self.folder.rglob(f"{keep}*") if keep and path.is_file()}
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.shadow.exists():
            shutil.copytree(self.shadow, self.folder)
        for path, content in kept.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def operations(self) -> list[Operation]:
        lines = (line.split(" ", 2) for line in self.trace.read_text().splitlines())
        return [Operation(int(number), kind, path) for number, kind, path in lines]

    def _environment(self, **orders: object) -> dict[str, str]:
        given = {"LD_PRELOAD": library("disk"), "DISK_FOLDER": self.folder}
        given |= {f"DISK_{name}": value for name, value in orders.items()}
        return {name: str(value) for name, value in given.items()}


def stepping_clock(seconds: float, every_s: float) -> dict[str, str]:
    """A wall clock that jumps forward and back."""
    return {"LD_PRELOAD": str(library("clock")), "CLOCK_STEP_S": str(seconds), "CLOCK_EVERY_S": str(every_s)}
