"""An output and everything that belongs to it, owned by one process: brought to a true state when it is opened."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
from msgspec import Struct

from rollmill.errors import ConfigError
from rollmill.store import repair
from rollmill.store.failures import FailureLog, read_failures
from rollmill.store.folder import run_folder
from rollmill.store.index import NAME as INDEX
from rollmill.store.index import Added, Index
from rollmill.store.journal import Journal, open_journal
from rollmill.store.lines import Broken, Line, Place, read_lines
from rollmill.store.lock import Lock
from rollmill.store.schema import Entry, stored_entry
from rollmill.store.totals import Totals, read_totals, write_totals
from rollmill.types import encode

_SAMPLE = 4096
_BATCH = 1000
# What reading JSON that somebody else wrote can raise.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Range = tuple[int, int, str]


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


class _Mark(Struct, frozen=True):
    """How far the index has read a file, and what tells whether it is still the same file."""

    size: int = 0
    head: str = ""
    tail: str = ""
    closed_at: int | None = None
    """The file's time when its owner closed it; None while it is written, and after a crash."""


def _samples(file: BinaryIO, size: int) -> tuple[str, str]:
    """What identifies the first `size` bytes of a file well enough: their beginning and their end."""
    length = min(size, _SAMPLE)
    head = os.pread(file.fileno(), length, 0)
    tail = os.pread(file.fileno(), length, size - length)
    return hashlib.blake2b(head, digest_size=8).hexdigest(), hashlib.blake2b(tail, digest_size=8).hexdigest()


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
        self._opened = False

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"output {self.path}: not a regular file")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.folder, f"output {self.path}")
        except OSError as error:
            raise ConfigError(f"output {self.path}: cannot be written: {error.strerror}") from None
        return self

    def open(self) -> None:
        """Read what is new, and mend what is broken. Until then nothing is changed."""
        self.path.with_name(f".{self.path.name}.repair").unlink(missing_ok=True)
        self.index = Index(self.folder / INDEX)
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
        try:
            if self._opened:
                self._opened = False
                self.journal.close()
                self.failures.close()
                self.index.begin()
                self._note_marks(closed=True)
                self.index.commit()
                self.index.close()
                self._leave_no_empty_index()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def keep(self, batch: Sequence[tuple[Entry, Place]]) -> None:
        """Index what was appended, in one transaction with what it all comes to."""
        self.index.begin()
        self._add(batch)
        self._note_marks(closed=False)
        self.index.commit()

    def _leave_no_empty_index(self) -> None:
        """A run that was refused before its first rollout leaves no trace."""
        names = {path.name for path in self.folder.iterdir()}
        if names <= {"lock", INDEX} and not self.path.exists():
            (self.folder / INDEX).unlink()

    # Bringing the index to where the files are.

    def _catch_up(self) -> None:
        if not self._same_files():
            self.index.clear()
        self.totals = read_totals(self.index.about("totals"))
        bad = self._read_journal(self._mark("journal").size)
        if bad:
            repair.set_aside(self.folder, self.path, bad)
            *middle, last = bad
            if last[1] == self.path.stat().st_size and not middle:
                repair.cut(self.path, last[0])
            else:
                repair.rewrite_without(self.path, bad)
                self.index.clear()
                self.totals = Totals()
                self._read_journal(0)
        self._read_failures()
        self.index.begin()
        self._note_marks(closed=False)
        self.index.commit()

    def _read_journal(self, start: int) -> list[Range]:
        """Index every row from an offset on; what has to go."""
        if not self.path.exists():
            return []
        bad: list[Range] = []
        batch: list[tuple[Entry, Place]] = []
        ends: list[int] = []
        size = self.path.stat().st_size

        def add() -> None:
            self.index.begin()
            added = self._add(batch)
            self.index.commit()
            doubles = [
                (place.offset, end, "doubled")
                for (_, place), end, one in zip(batch, ends, added, strict=True)
                if one.doubled
            ]
            self.found.doubled += len(doubles)
            # A row inside a frame cannot go alone; it stays, and counts for nothing.
            bad.extend(doubles if not self._compressed else [])
            batch.clear()
            ends.clear()

        for line in read_lines(self.path, start):
            entry = self._judge(line, size, bad)
            if entry is not None and isinstance(line, Line):
                batch.append((entry, line.place))
                ends.append(line.end)
                if len(batch) >= _BATCH:
                    add()
        add()
        return sorted(bad)

    @property
    def _compressed(self) -> bool:
        return self.path.name.endswith(".zst")

    def _judge(self, line: Line | Broken, size: int, bad: list[Range]) -> Entry | None:
        if isinstance(line, Broken):
            end = line.offset + len(line.content)
            if line.last:
                self.found.torn_bytes += len(line.content)
                bad.append((line.offset, end, "torn"))
            else:
                self.found.garbage.append(line.offset)
                bad.append((line.offset, end, "garbage"))
            return None
        content = line.content.removeprefix(b"\xef\xbb\xbf")
        if not content.strip():
            return None
        try:
            return stored_entry(content)
        except _UNREADABLE as error:
            offset = line.place.offset
            if _is_json(content):
                self.found.foreign += 1
                self.found.first_foreign = offset if self.found.first_foreign < 0 else self.found.first_foreign
            elif not line.whole and line.end == size:
                self.found.torn_bytes += line.end - offset
                bad.append((offset, line.end, "torn"))
            else:
                self.found.garbage.append(offset)
                if not self._compressed:
                    bad.append((offset, line.end, f"garbage: {error}"))
            return None

    def _read_failures(self) -> None:
        batch = [
            (logged.entry(), line.place)
            for line, logged in read_failures(self.folder, self._mark("failures").size)
            if logged.final
        ]
        self.index.begin()
        self._add(batch)
        self.index.commit()

    def _add(self, batch: Sequence[tuple[Entry, Place]]) -> list[Added]:
        added = self.index.add(batch)
        for one, (entry, _) in zip(added, batch, strict=True):
            if one.was is not None:
                self.totals.forget_failure(one.was, entry)
            if one.new:
                self.totals.add(entry)
        return added

    # Telling whether the files are those that were indexed.

    def _same_files(self) -> bool:
        return all(
            _is_same(self._mark(name), path)
            for name, path in (("journal", self.path), ("failures", self.folder / "failures.ndjson"))
        )

    def _mark(self, name: str) -> _Mark:
        content = self.index.about(name)
        return msgspec.json.decode(content, type=_Mark) if content else _Mark()

    def _note_marks(self, *, closed: bool) -> None:
        for name, path in (("journal", self.path), ("failures", self.folder / "failures.ndjson")):
            self.index.note(name, encode(_mark_of(path, closed=closed)))
        self.index.note("totals", write_totals(self.totals))


def _mark_of(path: Path, *, closed: bool) -> _Mark:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            return _Mark(status.st_size, *_samples(file, status.st_size), status.st_mtime_ns if closed else None)
    except FileNotFoundError:
        return _Mark()


def _is_same(mark: _Mark, path: Path) -> bool:
    """Whether a file is the one that was indexed, or that one with more at its end."""
    if mark.size == 0:
        return True
    if not path.exists():
        return False
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size < mark.size:
            return False
        # Whoever wrote to it since its owner closed it may have written anywhere.
        if mark.closed_at is not None and status.st_mtime_ns != mark.closed_at:
            return False
        return (mark.head, mark.tail) == _samples(file, mark.size)


def _is_json(content: bytes) -> bool:
    try:
        msgspec.json.decode(content)
    except _UNREADABLE:
        return False
    return True
