"""What a service writes: said under its name, its end remembered, and kept in a file if that is wanted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_TAIL = 20
_LONGEST_LINE = 64 * 2**10
_LONGEST_FILE = 10 * 2**20
_KEPT_FILES = 3


class Output:
    """The lines of one process, standard output and errors together."""

    def __init__(self, name: str, say: Callable[[str], None], hide: Callable[[str], str], folder: Path | None) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._name, self._say, self._hide = name, say, hide
        self._file = RotatingFile(folder / f"{name}.log") if folder else None

    async def read(self, stream: asyncio.StreamReader) -> None:
        """To its end."""
        with suppress(ValueError, ConnectionError):
            while line := await stream.readline():
                self._line(line.decode("utf-8", "replace").rstrip())

    def _line(self, line: str) -> None:
        line = self._hide("".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in line))
        self.tail.append(line)
        self._say(f"({self._name}) {line}")
        if self._file is not None:
            self._file.write(line)


class RotatingFile:
    """A file of lines that begins anew when it is long; the last ones are kept under other names."""

    def __init__(self, path: Path, *, longest: int = _LONGEST_FILE) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._longest = path, longest

    def write(self, line: str) -> None:
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > self._longest:
                for number in range(_KEPT_FILES - 1, 0, -1):
                    older = self._path.with_suffix(f".log.{number}")
                    if older.exists():
                        older.replace(self._path.with_suffix(f".log.{number + 1}"))
                self._path.replace(self._path.with_suffix(".log.1"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


LIMIT = _LONGEST_LINE
