"""A file of lines that one process appends to: whole lines or nothing, and on the disk when it is asked for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rollmill.errors import StoreError
from rollmill.files import sync_folder, write_all


class Appended:
    """Made when it is opened. Raises `OSError` there, and `StoreError` from then on."""

    def __init__(self, path: Path, *, lines: bool = True) -> None:
        """Without `lines`, what is appended ends where it ends."""
        self.path = path
        self._lines = lines
        self.is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self.size = os.fstat(self._file).st_size
        self._settled = False
        self._synced_folder = False

    def end(self) -> int:
        """Where what is written next begins."""
        if not self._settled:
            try:
                self._settle()
            except OSError as error:
                raise self._fault(error) from error
        return self.size

    def write(self, *parts: bytes) -> int:
        """Hand them to the operating system, one after the other; where they begin."""
        start = self.end()
        try:
            self._write(*parts)
        except OSError as error:
            raise self._fault(error) from error
        return start

    def sync(self) -> None:
        """What was written is on the disk. Called from another thread while more is written."""
        try:
            os.fsync(self._file)
            if self.is_new and not self._synced_folder:
                # The file's name is in its folder, which goes to the disk by itself.
                sync_folder(self.path.parent)
                self._synced_folder = True
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be brought to the disk: {error.strerror}") from error

    def close(self) -> None:
        """Afterwards it is on the disk; what stayed empty and was not there before is gone."""
        if self._file < 0:
            return
        file, empty = self._file, self.is_new and self.size == 0
        try:
            if empty:
                self.path.unlink(missing_ok=True)
            else:
                self.sync()
        finally:
            self._file = -1
            os.close(file)

    def _fault(self, error: OSError) -> StoreError:
        return StoreError(f"{self.path}: cannot append: {error.strerror}")

    def _write(self, *parts: bytes) -> None:
        try:
            write_all(self._file, *parts)
        except OSError:
            # Half a line would swallow the next one.
            self._settled = False
            with suppress(OSError):
                self._cut()
            raise
        self.size += sum(map(len, parts))

    def _settle(self) -> None:
        """Nothing follows half a line: what a failed write left goes, what was there before gets its line break."""
        self._cut()
        if self._lines and self.size and os.pread(self._file, 1, self.size - 1) != b"\n":
            self._write(b"\n")
        self._settled = True

    def _cut(self) -> None:
        if os.fstat(self._file).st_size > self.size:
            os.ftruncate(self._file, self.size)
