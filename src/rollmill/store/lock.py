"""One writer for an output: a lock of the operating system's, which names its owner and dies with it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from rollmill.errors import ConfigError

_NAME = "lock"
_PATIENCE_S = 0.3
_PAUSE_S = 0.03


class Lock:
    """Held from its making until `release`. Raises `ConfigError` where another process holds it."""

    def __init__(self, folder: Path, owned: str) -> None:
        """Makes the folder, too."""
        self._path = folder / _NAME
        self._file = _locked(self._path)
        if self._file < 0:
            holder = owner(folder) or "it has just begun or just ended"
            raise ConfigError(f"{owned} is being written by another run ({holder}): wait for it or stop it")
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """A run that was refused before its first rollout leaves no trace."""
        if self._file < 0:
            return
        folder = self._path.parent
        if list(folder.iterdir()) == [self._path]:
            self._path.unlink()
            folder.rmdir()
        os.close(self._file)
        self._file = -1


def owner(folder: Path) -> str | None:
    """Who holds the lock of a run's folder, if anybody does."""
    try:
        file = os.open(folder / _NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(file, 200, 0).decode("utf-8", "replace").strip()
    finally:
        os.close(file)
    return None


def _locked(path: Path) -> int:
    """The open file with the lock on it, or -1. The kernel drops the lock of a process that dies, however it dies."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if _takes(file, path):
            return file
        os.close(file)
        # Whoever asks for the owner has the lock for a moment, and an owner that leaves no trace removes the file.
        if time.monotonic() >= deadline:
            return -1
        time.sleep(_PAUSE_S)


def _takes(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(file).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
