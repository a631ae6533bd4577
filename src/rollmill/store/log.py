"""What a run said, with the time of each line: in its folder, for whoever asks later. It never grows large."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

NAME = "log.txt"
LONGEST = 10 * 2**20
KEPT = 3


class RotatingFile:
    """A file of lines that begins anew when it is long; the last ones are kept under names that end in `.1`, `.2`, …"""

    def __init__(self, path: Path, *, longest: int = LONGEST) -> None:
        """Makes the folder, too. The file is opened for each line: somebody may have moved it away."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._longest = path, longest

    def write(self, line: str) -> None:
        """What cannot be written is lost: that is no reason to stop."""
        content = f"{line}\n".encode("utf-8", "replace")
        with suppress(OSError):
            if self._size() + len(content) > self._longest:
                self._begin_anew()
            with self._path.open("ab", buffering=0) as file:
                file.write(content)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _begin_anew(self) -> None:
        # The oldest first: after a crash in between there is a gap, and nothing is lost.
        for number in range(KEPT, 0, -1):
            newer = self._named(number - 1)
            if newer.exists():
                newer.replace(self._named(number))

    def _named(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class RunLog:
    """The log of a run's folder."""

    def __init__(self, folder: Path) -> None:
        self._file = RotatingFile(folder / NAME)

    def line(self, text: str) -> None:
        self._file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}")
