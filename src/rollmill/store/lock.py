"""One writer for an output: a lock of the operating system's, which names its owner and dies with it."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from rollmill.errors import ConfigError

_NAME = "lock"


class Lock:
    """Held from its making until `release`. Raises `ConfigError` where another process holds it."""

    def __init__(self, folder: Path, owned: str) -> None:
        self._path = folder / _NAME
        # The kernel drops the lock of a process that dies, however it dies.
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        if not self._taken():
            owner = os.pread(self._file, 200, 0).decode("utf-8", "replace").strip()
            os.close(self._file)
            raise ConfigError(f"{owned} is being written by another run ({owner}): wait for it or stop it")
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

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # An earlier owner may have removed the file after it was opened here.
        return self._path.exists() and self._path.stat().st_ino == os.fstat(self._file).st_ino


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
