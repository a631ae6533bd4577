"""The output file: whole lines, appended by one writer. It is the truth for every rollout that ended with a reward."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
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
        """How much of a torn last line there is; it is cut before the first row is appended, and not before."""
        self.foreign: list[int] = []
        """The line numbers of rows that this package did not write; they stay, and count for nothing."""
        self._file = -1
        self._lock = -1
        self._ours = False
        self._size = 0
        self._open_end = False

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"output {self.path}: not a regular file")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._ours = not self.path.exists()
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            self.close()
            raise ConfigError(f"output {self.path}: cannot be written: {error.strerror}") from None
        self._size = os.fstat(self._file).st_size
        tail = self._last_line()
        # A whole row without a newline was written by an editor or a copy, not torn by a crash.
        self._open_end = bool(tail)
        self.torn_bytes = 0 if _is_row(tail) else len(tail)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            if self._ours and os.fstat(self._file).st_size == 0:
                self.path.unlink()
            os.close(self._file)
        if self._lock >= 0:
            self._leave_no_empty_folder()
            os.close(self._lock)
        self._file = self._lock = -1

    def append(self, row: bytes) -> None:
        """Hand one whole line to the operating system: it survives whatever happens to this process."""
        if self._open_end:
            self._mend_end()
        self._write(row + b"\n")

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            # Half a line would swallow the next one.
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise StoreError(f"{self.path}: cannot append: {error.strerror}") from error
        self._size += len(line)

    def summaries(self) -> Iterator[Summary]:
        """What is there already, row by row."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield read_summary(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    if line.strip() and not (self.torn_bytes and not line.endswith(b"\n")):
                        self.foreign.append(number)

    def _leave_no_empty_folder(self) -> None:
        """A run that was refused before its first rollout leaves no trace."""
        lock = self.folder / "lock"
        if list(self.folder.iterdir()) == [lock]:
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

    def _last_line(self) -> bytes:
        """What follows the last newline."""
        end, tail = self._size, b""
        while end > 0 and b"\n" not in tail:
            start = max(0, end - 2**20)
            tail = os.pread(self._file, end - start, start) + tail
            end = start
        return tail[tail.rfind(b"\n") + 1 :]

    def _mend_end(self) -> None:
        """A process that died while writing leaves half a line; it is kept aside, and its slot is owed again."""
        self._open_end = False
        if not self.torn_bytes:
            self._write(b"\n")
            return
        whole = self._size - self.torn_bytes
        try:
            (self.folder / f"torn-{whole}-{time.time_ns()}").write_bytes(self._last_line())
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot keep a torn line: {error.strerror}") from error
        os.ftruncate(self._file, whole)
        self._size = whole


def _is_row(line: bytes) -> bool:
    try:
        read_summary(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
