"""What a service writes: said under its name, its end remembered, and kept in a file if that is wanted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rollmill.store.log import RotatingFile

_TAIL = 20
_LONGEST_LINE = 64 * 2**10


class Output:
    """The lines of one process, standard output and errors together."""

    def __init__(self, name: str, say: Callable[[str], None], hide: Callable[[str], str], folder: Path | None) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._name, self._say, self._hide = name, say, hide
        self._file = RotatingFile(folder / f"{name}.log") if folder else None

    async def read(self, stream: asyncio.StreamReader) -> None:
        """To its end: whoever writes where nobody reads waits for ever."""
        with suppress(ConnectionError):
            while True:
                try:
                    line = await stream.readline()
                except ValueError:
                    line = b"(the beginning of a line that is too long)\n"
                if not line:
                    return
                self._line(line.decode("utf-8", "replace").rstrip())

    def _line(self, line: str) -> None:
        line = self._hide("".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in line))
        self.tail.append(line)
        self._say(f"({self._name}) {line}")
        if self._file is not None:
            self._file.write(line)


LIMIT = _LONGEST_LINE
