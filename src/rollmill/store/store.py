"""An output and everything that belongs to it, owned by one process: brought to a true state when it is opened."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

from rollmill.errors import ConfigError
from rollmill.store import repair
from rollmill.store.failures import NAME as FAILURES
from rollmill.store.failures import FailureLog, read_failures
from rollmill.store.folder import run_folder
from rollmill.store.index import NAME as INDEX
from rollmill.store.index import Added, Index, TornIndexError
from rollmill.store.journal import Journal, open_journal
from rollmill.store.lines import Broken, Line, Place, is_compressed, read_lines
from rollmill.store.lock import Lock
from rollmill.store.mark import Mark, boot, is_same, mark_of, read_mark
from rollmill.store.repair import Range
from rollmill.store.schema import UNREADABLE, Entry, is_json, stored_entry
from rollmill.store.totals import Totals, read_totals, write_totals
from rollmill.types import encode

_BATCH = 1000
_CLOSED = ""


class Found(Struct):
    """What opening an output brought to light, for the one who owns it to hear of."""

    torn_bytes: int = 0
    garbage: list[int] = msgspec.field(default_factory=list)
    """Where lines were that are no JSON."""
    doubled: int = 0
    """Rows for slots that had one already."""
    foreign: int = 0
    """Rows of another origin: they stay, and count for nothing."""
    first_foreign: int = -1


class Store:
    """Enter it to own the output: a second writer is refused, what a crash tore is cut, what is not indexed is read."""

    journal: Journal
    index: Index
    failures: FailureLog

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = run_folder(path)
        self.found = Found()
        self.totals = Totals()
        self._lock: Lock | None = None
        self._indexed = self._opened = False

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"output {self.path}: not a regular file")
        try:
            self._lock = Lock(self.folder, f"output {self.path}")
        except OSError as error:
            raise ConfigError(f"output {self.path}: cannot be written: {error.strerror}") from None
        return self

    def open(self) -> None:
        """Read what is new, and mend what is broken. Until then nothing is changed."""
        repair.part_of(self.path).unlink(missing_ok=True)
        self.index = Index(self.folder / INDEX)
        self._indexed = True
        try:
            self._catch_up()
        except TornIndexError:
            # Its pages are wrong where nobody had looked yet.
            self._forget()
            self._catch_up()
        try:
            self.journal = open_journal(self.path)
        except OSError as error:
            raise ConfigError(f"output {self.path}: cannot be written: {error.strerror}") from None
        self.failures = FailureLog(self.folder)
        self._opened = True

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Every step is made, whatever became of the others; the first error is raised."""
        with ExitStack() as steps:
            if self._lock is not None:
                steps.callback(self._lock.release)
                self._lock = None
            if self._indexed:
                self._indexed = False
                steps.callback(self._leave_no_empty_index)
                steps.callback(self.index.close)
            if self._opened:
                self._opened = False
                try:
                    self.failures.close()
                finally:
                    self.journal.close()
                # Only where all went well; the next to open it looks closely otherwise.
                self._note_closed()

    def keep(self, batch: Sequence[tuple[Entry, Place]]) -> None:
        """Index all that was appended since the last time, in one transaction with what it all comes to."""
        with self.index.transaction():
            self._add(batch)
            self._note(mark_of(self.path, self.journal.size), mark_of(self.failures.path, self.failures.size))

    def _leave_no_empty_index(self) -> None:
        """A run that was refused before its first rollout leaves no trace."""
        names = {path.name for path in self.folder.iterdir()}
        if names <= {"lock", INDEX} and not self.path.exists():
            (self.folder / INDEX).unlink(missing_ok=True)

    # Bringing the index to where the files are.

    def _catch_up(self) -> None:
        if not self._is_true():
            self._forget()
        with self.index.transaction():
            self.index.note("boot", boot())
        self.totals = read_totals(self.index.about("totals"))
        bad = self._read_journal()
        if bad:
            self._mend(bad)
        self._read_failures()

    def _mend(self, bad: Sequence[Range]) -> None:
        repair.set_aside(self.folder, self.path, bad)
        if len(bad) == 1 and bad[0].end == self.path.stat().st_size:
            repair.cut(self.path, bad[0].start)
            return
        # The index goes first: after a crash in between, its places would be those of the old file.
        self._forget()
        repair.rewrite_without(self.path, bad)
        found, self.found = self.found, Found()
        self._read_journal()
        # What was moved aside was found before; what stays has been found again, where it is.
        self.found.torn_bytes, self.found.garbage = found.torn_bytes, found.garbage
        self.found.doubled = found.doubled

    def _forget(self) -> None:
        self.index.clear()
        self.totals = Totals()

    def _read_journal(self) -> list[Range]:
        """Index every row that is new; what has to go, in order."""
        if not self.path.exists():
            return []
        reading = _Reading(self.path)
        batch: list[tuple[Entry, Line]] = []
        line: Line | Broken
        for line in read_lines(self.path, self._mark("journal").size):
            entry = reading.judge(line, self.found)
            if entry is not None and isinstance(line, Line):
                # All lines of a frame are marked at once.
                if len(batch) >= _BATCH and batch[-1][1].end <= line.start:
                    self._index_lines(batch, reading)
                    batch.clear()
                batch.append((entry, line))
        self._index_lines(batch, reading)
        return sorted(reading.bad)

    def _index_lines(self, batch: Sequence[tuple[Entry, Line]], reading: _Reading) -> None:
        with self.index.transaction():
            added = self._add([(entry, line.place) for entry, line in batch])
            doubles = [line for (_, line), one in zip(batch, added, strict=True) if one.doubled]
            self.found.doubled += len(doubles)
            reading.doubled(doubles)
            # It begins there again after a crash: what has to go must be found again.
            read = batch[-1][1].end if batch else self._mark("journal").size
            self._note(mark_of(self.path, min(read, reading.first_bad)), self._mark("failures"))

    def _read_failures(self) -> None:
        mark = self._mark("failures")
        path = self.folder / FAILURES
        size = path.stat().st_size if path.exists() else 0
        batch = []
        for line, logged in read_failures(self.folder, mark.size):
            if logged.final:
                batch.append((logged.entry(), line.place))
            if len(batch) >= _BATCH:
                self._index_failures(batch, line.end)
                batch.clear()
        self._index_failures(batch, size)

    def _index_failures(self, batch: Sequence[tuple[Entry, Place]], size: int) -> None:
        with self.index.transaction():
            self._add(batch)
            self._note(self._mark("journal"), mark_of(self.folder / FAILURES, size))

    def _add(self, batch: Sequence[tuple[Entry, Place]]) -> list[Added]:
        added = self.index.add(batch)
        self.totals.add_all([entry for one, (entry, _) in zip(added, batch, strict=True) if one.new])
        for one, (entry, _) in zip(added, batch, strict=True):
            if one.was is not None:
                self.totals.forget_failure(one.was, entry)
        return added

    # Telling whether the index is true.

    def _is_true(self) -> bool:
        if self.index.about("boot") not in (None, _CLOSED, boot()):
            # The machine went down while it was written: some of its pages may be older than others.
            return False
        try:
            read_totals(self.index.about("totals"))
        except msgspec.DecodeError:
            return False
        return is_same(self._mark("journal"), self.path) and is_same(self._mark("failures"), self.folder / FAILURES)

    def _mark(self, name: str) -> Mark:
        return read_mark(self.index.about(name))

    def _note(self, journal: Mark, failures: Mark) -> None:
        self.index.note("journal", encode(journal))
        self.index.note("failures", encode(failures))
        self.index.note("totals", write_totals(self.totals))

    def _note_closed(self) -> None:
        settled = self.index.settle()
        with self.index.transaction():
            journal, failures = self._mark("journal"), self._mark("failures")
            self._note(
                mark_of(self.path, journal.size, closed=True),
                mark_of(self.folder / FAILURES, failures.size, closed=True),
            )
            if settled:
                self.index.note("boot", _CLOSED)
        self.index.settle()


class _Reading:
    """What is found while an output is read."""

    def __init__(self, path: Path) -> None:
        self._size = path.stat().st_size
        self._compressed = is_compressed(path)
        self.bad: list[Range] = []
        self.first_bad = sys.maxsize

    def judge(self, line: Line | Broken, found: Found) -> Entry | None:
        """The rollout that a line is, if it is one."""
        if isinstance(line, Broken):
            self._broken(line, found)
            return None
        if not line.content.strip():
            return None
        try:
            return stored_entry(line.content)
        except UNREADABLE as error:
            if is_json(line.content):
                found.foreign += 1
                found.first_foreign = line.start if found.first_foreign < 0 else found.first_foreign
            elif not line.whole and line.end == self._size:
                found.torn_bytes += line.end - line.start
                self._add(Range(line.start, line.end, "torn"))
            else:
                found.garbage.append(line.start)
                self._remove(line, f"garbage: {error}")
        return None

    def doubled(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._remove(line, "doubled")

    def _remove(self, line: Line, why: str) -> None:
        # A row inside a frame cannot go alone; it stays, and counts for nothing.
        if not self._compressed:
            self._add(Range(line.start, line.end, why))

    def _broken(self, frame: Broken, found: Found) -> None:
        if frame.last:
            found.torn_bytes += frame.end - frame.start
        else:
            found.garbage.append(frame.start)
        self._add(Range(frame.start, frame.end, "torn" if frame.last else "garbage"))

    def _add(self, bad: Range) -> None:
        self.bad.append(bad)
        self.first_bad = min(self.first_bad, bad.start)
