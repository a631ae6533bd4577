"""How far an index has read a file, and whether that file is still the one that was read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

_SAMPLE = 4096
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Mark(Struct, frozen=True):
    """The first `size` bytes of a file were read."""

    size: int = 0
    head: str = ""
    tail: str = ""
    closed_at: int | None = None
    """The file's time when its owner closed it; None while it is written, and after a crash."""
    closed_size: int = 0


def mark_of(path: Path, size: int, *, closed: bool = False) -> Mark:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            closed_at = status.st_mtime_ns if closed else None
            return Mark(size, *_samples(file, size), closed_at, status.st_size if closed else 0)
    except FileNotFoundError:
        return Mark()


def read_mark(content: bytes | None) -> Mark:
    """What is no mark marks nothing."""
    try:
        return msgspec.json.decode(content, type=Mark) if content else Mark()
    except msgspec.DecodeError:
        return Mark()


def is_same(mark: Mark, path: Path) -> bool:
    """Whether a file is the one that was read, or that one with more at its end."""
    if mark.size == 0:
        return True
    if not path.exists():
        return False
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size < mark.size:
            return False
        # Whoever wrote to it since its owner closed it may have written anywhere.
        if mark.closed_at is not None and (status.st_mtime_ns, status.st_size) != (mark.closed_at, mark.closed_size):
            return False
        return (mark.head, mark.tail) == _samples(file, mark.size)


def boot() -> str:
    """A name for the time since this machine was started; where it has none, no two are the same."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return os.urandom(8).hex()


def _samples(file: BinaryIO, size: int) -> tuple[str, str]:
    """What identifies the first `size` bytes of a file well enough: their beginning and their end."""
    length = min(size, _SAMPLE)
    head = os.pread(file.fileno(), length, 0)
    tail = os.pread(file.fileno(), length, size - length)
    return hashlib.blake2b(head, digest_size=8).hexdigest(), hashlib.blake2b(tail, digest_size=8).hexdigest()
