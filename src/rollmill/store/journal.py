"""The output file: whole lines, appended by one writer. It is the truth for every rollout that ended with a reward."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from rollmill.errors import ConfigError, StoreError
from rollmill.store.schema import Summary, read_summary


def run_folder(output: Path) -> Path:
    """`runs/a.jsonl` keeps what else it has in `runs/a.run/`: nothing but outputs matches `*.jsonl`."""
    return output.with_name(f"{output.name.removesuffix('.jsonl')}.run")


class Journal:
    """An output, opened for appending. Enter it to own it: a second writer is refused, a torn last line is cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = run_folder(path)
        self.torn_bytes = 0
        self.foreign: list[int] = []
        """The line numbers of rows that this package did not write; they stay, and count for nothing."""
        self._file = -1
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            self.close()
            raise ConfigError(f"output {self.path}: cannot be written: {error.strerror}") from None
        self._cut_torn_line()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            self._leave_nothing_empty()
            os.close(self._file)
        if self._lock >= 0:
            os.close(self._lock)
        self._file = self._lock = -1

    def append(self, row: bytes) -> None:
        """Hand one whole line to the operating system: it survives whatever happens to this process."""
        line = memoryview(row + b"\n")
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise StoreError(f"{self.path}: cannot append: {error.strerror}") from error

    def summaries(self) -> Iterator[Summary]:
        """What is there already, row by row."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield read_summary(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    if line.strip():
                        self.foreign.append(number)

    def _leave_nothing_empty(self) -> None:
        """A run that was refused before its first rollout leaves no trace."""
        lock = self.folder / "lock"
        if os.fstat(self._file).st_size == 0 and list(self.folder.iterdir()) == [lock]:
            self.path.unlink()
            lock.unlink()
            self.folder.rmdir()

    def _take_lock(self) -> None:
        # The kernel drops the lock of a process that dies, however it dies.
        lock = self.folder / "lock"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not lock.exists() or lock.stat().st_ino != os.fstat(self._lock).st_ino:
                # An earlier owner removed the file between our opening and locking it.
                raise BlockingIOError
        except BlockingIOError:
            owner = os.pread(self._lock, 200, 0).decode("utf-8", "replace").strip()
            raise ConfigError(
                f"output {self.path} is being written by another run ({owner}): wait for it or stop it"
            ) from None
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _cut_torn_line(self) -> None:
        """A process that died while writing leaves half a line; its slot is owed again."""
        size = os.fstat(self._file).st_size
        end, tail = size, b""
        while end > 0 and b"\n" not in tail:
            start = max(0, end - 2**20)
            tail = os.pread(self._file, end - start, start) + tail
            end = start
        whole = tail.rfind(b"\n") + 1
        torn = tail[whole:]
        if not torn:
            return
        if _is_row(torn):
            self.append(b"")
            return
        self.torn_bytes = len(torn)
        (self.folder / f"torn-{size - len(torn)}").write_bytes(torn)
        os.ftruncate(self._file, size - len(torn))


def _is_row(line: bytes) -> bool:
    # A whole row without a newline was written by an editor or a copy, not torn by a crash.
    try:
        read_summary(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
