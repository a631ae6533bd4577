"""The log of failed attempts: the truth for slots that failed for good."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from rollmill.errors import StoreError
from rollmill.store.folder import write_all
from rollmill.store.lines import Place, read_lines
from rollmill.store.schema import Entry, one_line
from rollmill.types import Failure, Slot, encode

NAME = "failures.ndjson"


class Logged(Struct, frozen=True):
    """A line of the log."""

    slot: Slot
    attempt: int
    failure: Failure
    final: bool
    """Whether the slot counts as done: no attempt follows unless `retry_failed` asks for one."""
    at: str
    run: str
    model: str
    seconds: dict[str, float]
    response: Raw
    """What had happened until then: the first thing that whoever looks into a failure asks for."""

    def entry(self) -> Entry:
        return Entry(
            slot=self.slot,
            stop="failed",
            failure=self.failure,
            model=self.model,
            attempt=self.attempt,
            seconds=self.seconds,
            run=self.run,
        )


_logged = msgspec.json.Decoder(Logged)


class FailureLog:
    """Appends failed attempts; there is no file before the first."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file = -1
        self.size = self.path.stat().st_size if self.path.exists() else 0

    def append(self, entry: Entry, response: Raw, *, final: bool) -> Place:
        if entry.failure is None:
            raise ValueError("an attempt that did not fail has no line in the log of failures")
        logged = Logged(
            slot=entry.slot,
            attempt=entry.attempt,
            failure=entry.failure,
            final=final,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            run=entry.run,
            model=entry.model,
            seconds=entry.seconds,
            response=response,
        )
        return self._append(one_line(encode(logged)))

    def sync(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def _append(self, row: bytes) -> Place:
        try:
            if self._file < 0:
                self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
                self._end_torn_line()
            place = Place(self.size, len(row))
            write_all(self._file, row + b"\n")
        except OSError as error:
            raise StoreError(f"{self.path}: cannot append: {error.strerror}") from error
        self.size += len(row) + 1
        return place

    def _end_torn_line(self) -> None:
        self.size = os.fstat(self._file).st_size
        if self.size and os.pread(self._file, 1, self.size - 1) != b"\n":
            write_all(self._file, b"\n")
            self.size += 1


def read_failures(folder: Path, start: int = 0) -> Iterator[tuple[Any, Logged]]:
    """Every whole line from an offset on, with its place; half lines that crashes left are passed over."""
    path = folder / NAME
    if not path.exists():
        return
    for line in read_lines(path, start):
        try:
            yield line, _logged.decode(line.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
