"""A file that others append to, read as far as it has come."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from rollmill.collection.lines import Lines
from rollmill.collection.source import Reader
from rollmill.collection.stretch import Cutter, Stretch
from rollmill.errors import ConfigError
from rollmill.taskset import frames_of

_CHUNK = 1 << 18
_SAMPLE = 256

Key = tuple[int, int]
"""What a file is, whatever its name: the device, and its number there."""


def key_of(status: os.stat_result) -> Key:
    return status.st_dev, status.st_ino


class GrowingFile:
    """One file, known by what it is and not by its name. It is open from its first row until `close`."""

    def __init__(self, path: Path, key: Key, reader: Reader, *, part: int, now: float) -> None:
        self.path, self.key, self.part = path, key, part
        self.changed_at = now
        self.left_at: float | None = None
        """When it was seen that nobody names it any more."""
        self.rows = 0
        """How many have been given."""
        self._name = str(path)
        self._cutter = Cutter(self._name, partial(reader.planned, self._name), salt=reader.salt, part=part)
        self._lines, self._frames = Lines(), frames_of(path)
        self._seen = (-1, -1)
        self._size = self._offset = 0
        self._sample = b""
        self._file = -1
        self._quiet = self._looked_at_the_last = False

    # What is known of it without reading.

    @property
    def begun(self) -> bool:
        return self._offset > 0

    @property
    def is_open(self) -> bool:
        return self._file >= 0

    @property
    def unread(self) -> bool:
        """Whether there may be a row to be had, as far as it was looked at."""
        return self._offset < self._size or (self._lines.left and self._quiet and not self._looked_at_the_last)

    @property
    def unfinished(self) -> bool:
        """Whether it could not end here."""
        return self._offset < self._size or self._lines.left or (self._frames is not None and self._frames.within)

    def look(self, status: os.stat_result, now: float) -> None:
        """How long it is now."""
        seen = (status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            self.changed_at, self._looked_at_the_last = now, False
        # From one look to the next nothing has come: a row without its line break may be all of it.
        self._quiet = seen == self._seen
        self._seen, self._size = seen, max(status.st_size, self._offset)

    def is_same(self, status: os.stat_result) -> bool:
        """Whether what was read is still in it; not where it was cut, or written anew."""
        if not self.begun or (status.st_size, status.st_mtime_ns) == self._seen:
            return True
        if status.st_size < self._offset or not self._opened():
            return False
        try:
            return os.pread(self._file, len(self._sample), self._offset - len(self._sample)) == self._sample
        except OSError:
            return False

    def look_from_within(self, now: float) -> None:
        """The same where its name is gone: it may grow for as long as somebody has it open."""
        if self.is_open:
            with suppress(OSError):
                self.look(os.fstat(self._file), now)

    # Reading.

    def stretch(self, *, ended: bool) -> Stretch | None:
        """The rows that have come. Where it has `ended`, its last line is one, whole or not."""
        found: Stretch | None = None
        while found is None:
            row = self._lines.next()
            if row is None and not self._read():
                row = self._last(ended)
                if row is None:
                    found = self._cutter.rest()
                    break
            found = self._cutter.add(row) if row is not None else None
        self.rows += len(found or ())
        return found

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _last(self, ended: bool) -> tuple[int, bytes] | None:
        if ended and self._frames is not None and self._frames.within:
            raise ConfigError(f"{self.path}: its end is missing")
        if not ended and (self._looked_at_the_last or not self._quiet):
            return None
        self._looked_at_the_last = True
        return self._lines.last(ended=ended)

    def _read(self) -> bool:
        """False where there is no more."""
        if self._offset >= self._size or not self._opened():
            return False
        try:
            chunk = os.pread(self._file, min(_CHUNK, self._size - self._offset), self._offset)
            self._lines.feed(self._frames.feed(chunk) if self._frames is not None else chunk)
        except OSError as error:
            if error.errno == errno.ESTALE:
                # Another machine has removed it: what was read is all there is.
                self._size = self._offset
                return False
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        self._offset += len(chunk)
        self._sample = (self._sample + chunk)[-_SAMPLE:]
        return bool(chunk)

    def _opened(self) -> bool:
        """False where it is not there any more."""
        if self._file >= 0:
            return True
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        if key_of(os.fstat(file)) != self.key:
            os.close(file)
            return False
        self._file = file
        return True
