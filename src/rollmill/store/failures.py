"""The log of failed attempts: the truth for slots that failed for good."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from rollmill.errors import StoreError
from rollmill.store.appended import Appended
from rollmill.store.lines import Line, Place, read_lines
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
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    labels: dict[str, str] = {}
    task: Raw = Raw(b"null")
    """The input row as it was played, where the attempt was final: there is no other line that has it."""

    def entry(self) -> Entry:
        return Entry(
            slot=self.slot,
            stop="failed",
            failure=self.failure,
            model=self.model,
            attempt=self.attempt,
            turns=self.turns,
            tool_calls=self.tool_calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
            seconds=self.seconds,
            labels=self.labels,
            run=self.run,
        )


_logged = msgspec.json.Decoder(Logged)


class FailureLog:
    """Appends failed attempts; there is no file before the first."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: Appended | None = None

    @property
    def size(self) -> int:
        if self._file is not None:
            return self._file.size
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, entry: Entry, response: Raw, *, final: bool, task: Raw = Raw(b"null")) -> Place:
        if entry.failure is None:
            raise ValueError("an attempt that did not fail has no line in the log of failures")
        return self.copy(_line(entry, entry.failure, response, final=final, task=task))

    def copy(self, logged: Logged) -> Place:
        """Append a line as it is, that of another log for example."""
        row = one_line(encode(logged))
        return Place(self._opened().write(row + b"\n"), len(row))

    def sync(self) -> None:
        """What was appended is on the disk. Called from another thread while more is appended."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _opened(self) -> Appended:
        if self._file is None:
            try:
                self._file = Appended(self.path)
            except OSError as error:
                raise StoreError(f"{self.path}: cannot be written: {error.strerror}") from error
        return self._file


def read_failures(folder: Path, start: int = 0) -> Iterator[tuple[Line, Logged]]:
    """Every whole line from an offset on, with its place; half lines that crashes left are passed over."""
    path = folder / NAME
    if not path.exists():
        return
    for line in read_lines(path, start):
        if not isinstance(line, Line):
            continue
        try:
            yield line, _logged.decode(line.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue


def _line(entry: Entry, failure: Failure, response: Raw, *, final: bool, task: Raw) -> Logged:
    return Logged(
        slot=entry.slot,
        attempt=entry.attempt,
        failure=failure,
        final=final,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        run=entry.run,
        model=entry.model,
        seconds=entry.seconds,
        response=response,
        turns=entry.turns,
        tool_calls=entry.tool_calls,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        cached_tokens=entry.cached_tokens,
        reasoning_tokens=entry.reasoning_tokens,
        labels=entry.labels,
        task=task,
    )
