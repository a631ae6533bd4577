"""The output file: whole lines, appended by one writer. It is the truth for every rollout that ended with a reward."""

from __future__ import annotations

from pathlib import Path

import zstandard

from rollmill.store.appended import Appended
from rollmill.store.lines import Place, is_compressed

_MOST_HELD = 1 << 17


def open_journal(path: Path) -> Journal:
    """The output of that name, for appending. Raises `OSError`."""
    return CompressedJournal(path) if is_compressed(path) else Journal(path)


class Journal:
    """Appends lines. A line survives this process from `hand_over` on, and the machine from the next `sync` on."""

    at_commit = False
    """Whether a line reaches the file at the next `commit` only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = Appended(path, lines=not self.at_commit)
        self._lines: list[bytes] = []
        self._held = 0

    @property
    def size(self) -> int:
        """Of what is in the file."""
        return self._file.size

    def append(self, row: bytes) -> Place:
        place = Place(self._file.end() + self._held, len(row))
        self._hold(row)
        if self._held >= _MOST_HELD:
            self.hand_over()
        return place

    def hand_over(self) -> None:
        """Every line that was appended is the operating system's. One call for many takes less than one for each."""
        if lines := self._taken():
            self._file.write(*lines)

    def commit(self) -> None:
        """Every line that was appended is in the file."""
        self.hand_over()

    def sync(self) -> None:
        """What is in the file is on the disk. Called from another thread while lines are appended."""
        self._file.sync()

    def close(self) -> None:
        """Afterwards everything is on the disk. An output that got no line is not made."""
        try:
            self.commit()
        finally:
            self._file.close()

    def _hold(self, row: bytes) -> None:
        self._lines += (row, b"\n")
        self._held += len(row) + 1

    def _taken(self) -> list[bytes]:
        lines, self._lines, self._held = self._lines, [], 0
        return lines


class CompressedJournal(Journal):
    """Writes one zstd frame for each commit; `zstd -dc` and every reader of the format takes them as one stream."""

    at_commit = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # With checksums, a frame in which a bit has turned is garbage and not another rollout.
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)

    def append(self, row: bytes) -> Place:
        place = Place(self.size, len(row), self._held)
        self._hold(row)
        return place

    def hand_over(self) -> None:
        """Nothing: a frame of few lines would be a large one."""

    def commit(self) -> None:
        if lines := self._taken():
            self._file.write(self._compressor.compress(b"".join(lines)))
