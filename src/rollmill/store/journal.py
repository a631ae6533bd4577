"""The output file: whole lines, appended by one writer. It is the truth for every rollout that ended with a reward."""

from __future__ import annotations

from pathlib import Path

import zstandard

from rollmill.store.appended import Appended
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
        self._file = Appended(path, lines=not self.at_commit)

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, row: bytes) -> Place:
        """Hand one line to the operating system."""
        return Place(self._file.write(row + b"\n"), len(row))

    def commit(self) -> None:
        """Every line that was appended is in the file."""

    def sync(self) -> None:
        """What is in the file is on the disk. Called from another thread while lines are appended."""
        self._file.sync()

    def close(self) -> None:
        """Afterwards everything is on the disk. An output that got no line is not made."""
        try:
            self.commit()
        finally:
            self._file.close()


class CompressedJournal(Journal):
    """Writes one zstd frame for each commit; `zstd -dc` and every reader of the format takes them as one stream."""

    at_commit = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rows: list[bytes] = []
        self._inner = 0
        # With checksums, a frame in which a bit has turned is garbage and not another rollout.
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)

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
        self._file.write(frame)
