"""A stream: standard input or a named pipe, read as far as it has come and to its end."""

from __future__ import annotations

import os
import select
from functools import partial
from pathlib import Path

from rollmill.collection.lines import Lines
from rollmill.collection.source import Reader
from rollmill.collection.stretch import Cutter, Stretch
from rollmill.errors import ConfigError

STDIN = Path("/dev/stdin")
_CHUNK = 1 << 16


class Piped:
    """Never waits: what has not come is not there."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self.path = path
        self._lines = Lines()
        self._cutter = Cutter(str(path), partial(reader.planned, str(path)))
        self._file = -1
        self.ended = False

    def stretch(self, *, ended: bool = False) -> Stretch | None:
        """The rows that have come; with `ended`, no more are wanted of it."""
        found: Stretch | None = None
        while found is None:
            row = self._lines.next()
            if row is None and not self._read():
                self.ended = self.ended or ended
                row = self._lines.last(ended=self.ended)
                if row is None:
                    return self._cutter.rest()
            found = self._cutter.add(row) if row is not None else None
        return found

    def open(self) -> int:
        """Its descriptor, which tells when more has come."""
        if self._file < 0:
            try:
                # A pipe that nobody writes to yet is not waited for.
                self._file = os.dup(0) if self.path == STDIN else os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError as error:
                raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> bool:
        if self.ended or not _is_ready(self.open()):
            return False
        try:
            chunk = os.read(self._file, _CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        self._lines.feed(chunk)
        self.ended = not chunk
        return bool(chunk)


def _is_ready(file: int) -> bool:
    """Whether reading gives something at once, be it the end."""
    asking = select.poll()
    asking.register(file, select.POLLIN)
    return bool(asking.poll(0))
