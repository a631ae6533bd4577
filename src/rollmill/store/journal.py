"""The output file: whole lines, appended by one writer. It is the truth for every rollout that ended with a reward."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import zstandard

from rollmill.errors import StoreError
from rollmill.store.folder import write_all
from rollmill.store.lines import Place, is_compressed


def open_journal(path: Path) -> Journal:
    """The output of that name, for appending. Raises `OSError`."""
    return CompressedJournal(path) if is_compressed(path) else Journal(path)


class Journal:
    """Appends lines. A line survives this process from `append` on, and the machine from the next `sync` on."""

    at_commit = False
    """Whether a line reaches the file at the next `commit` only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self.size = os.fstat(self._file).st_size

    def append(self, row: bytes) -> Place:
        """Hand one line to the operating system."""
        place = Place(self.size, len(row))
        self._write(row + b"\n")
        return place

    def commit(self) -> None:
        """Every line that was appended is in the file."""

    def sync(self) -> None:
        """What is in the file is on the disk. Called from another thread while lines are appended."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be brought to the disk: {error.strerror}") from error

    def close(self) -> None:
        if self._file < 0:
            return
        self.commit()
        self.sync()
        if self._new and self.size == 0:
            self.path.unlink()
        os.close(self._file)
        self._file = -1

    def _write(self, content: bytes) -> None:
        try:
            write_all(self._file, content)
        except OSError as error:
            # Half a line would swallow the next one.
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise StoreError(f"{self.path}: cannot append: {error.strerror}") from error
        self.size += len(content)


class CompressedJournal(Journal):
    """Writes one zstd frame for each commit; `zstd -dc` and every reader of the format takes them as one stream."""

    at_commit = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rows: list[bytes] = []
        self._inner = 0
        self._compressor = zstandard.ZstdCompressor(level=3)

    def append(self, row: bytes) -> Place:
        place = Place(self.size, len(row), self._inner)
        self._rows += (row, b"\n")
        self._inner += len(row) + 1
        return place

    def commit(self) -> None:
        if not self._rows:
            return
        frame = self._compressor.compress(b"".join(self._rows))
        self._rows, self._inner = [], 0
        self._write(frame)
