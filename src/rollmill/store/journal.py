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
            if os.fstat(self._file).st_size == 0:
                self.path.unlink()
            os.close(self._file)
        if self._lock >= 0:
            self._leave_no_empty_folder()
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

    def _leave_no_empty_folder(self) -> None:
        """A run that was refused before its first rollout leaves no trace."""
        lock = self.folder / "lock"
        if not self.path.is_file() and list(self.folder.iterdir()) == [lock]:
            lock.unlink()
            self.folder.rmdir()

    def _take_lock(self) -> None:
        # The kernel drops the lock of a process that dies, however it dies.
        path = self.folder / "lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # An earlier owner may have removed the file after it was opened here.
            mine = path.exists() and path.stat().st_ino == os.fstat(lock).st_ino
        except BlockingIOError:
            mine = False
        if not mine:
            owner = os.pread(lock, 200, 0).decode("utf-8", "replace").strip()
            os.close(lock)
            raise ConfigError(f"output {self.path} is being written by another run ({owner}): wait for it or stop it")
        self._lock = lock
        os.truncate(lock, 0)
        os.pwrite(lock, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

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
