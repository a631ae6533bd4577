"""Files written whole: what every part of the package does the same way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rollmill.errors import StoreError

_MOST_PARTS = 1000
"""How many one call takes, nearly."""


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file: a reader sees the old one or the new one, never half of one."""
    _replace(path, content, lambda _: None)


def write_durably(path: Path, content: bytes) -> None:
    """The same, and a power cut leaves the old one or the new one, too: never a name without content."""
    _replace(path, content, os.fsync)
    sync_folder(path.parent)


def _replace(path: Path, content: bytes, sync: Callable[[int], None]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb", buffering=0) as file:
            write_all(file.fileno(), content)
            sync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """The names of a folder's files are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(file: int, *parts: bytes) -> None:
    """Hand all of it to the operating system; a write may take less than it is given."""
    for first in range(0, len(parts), _MOST_PARTS):
        some = parts[first : first + _MOST_PARTS]
        written = os.writev(file, some)
        if written < sum(map(len, some)):
            rest = memoryview(b"".join(some))[written:]
            while rest:
                rest = rest[os.write(file, rest) :]
