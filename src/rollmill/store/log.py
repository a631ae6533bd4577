"""What a run said, with the time of each line: in its folder, for whoever asks later."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

NAME = "log.txt"


class RunLog:
    """Appends lines. A log that cannot be written is no reason to stop a run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file = -1

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def line(self, text: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        if self._file >= 0:
            with suppress(OSError):
                os.write(self._file, f"{at} {text}\n".encode("utf-8", "replace"))
