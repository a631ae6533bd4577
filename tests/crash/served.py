"""The scripted model server, started and stopped by a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from tests.conftest import ROOT
from tests.crash.script import Asked, Script


class Served:
    def __init__(self, folder: Path, script: Script) -> None:
        self.log = folder / "server.log"
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.crash.server", str(self.log)),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.becomes(script)
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/v1"

    def becomes(self, script: Script) -> None:
        """Do otherwise from here on."""
        self.script = script
        self._process.stdin.write(msgspec.json.encode(script) + b"\n")
        self._process.stdin.flush()

    def asked(self) -> list[Asked]:
        """Every request so far."""
        return read_log(self.log)

    def stop(self) -> list[Asked]:
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait(10)
            self._process.stdout.close()
        return self.asked()


def read_log(path: Path) -> list[Asked]:
    *lines, _half = path.read_bytes().split(b"\n")
    return [msgspec.json.decode(line, type=Asked) for line in lines]


@contextmanager
def served(folder: Path, **script: object) -> Iterator[Served]:
    server = Served(folder, Script(**script))
    try:
        yield server
    finally:
        server.stop()
