"""What must not stay in an output is moved aside: nothing is deleted, and every other line stays as it is."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from rollmill.errors import StoreError
from rollmill.store.folder import write_all
from rollmill.types import encode

QUARANTINE = "quarantine.ndjson"


class Aside(Struct, frozen=True, omit_defaults=True):
    """Bytes that were moved out of an output: where they were, why, and what they are."""

    offset: int
    length: int
    why: str
    text: str | None = None
    base64: str | None = None


def set_aside(folder: Path, path: Path, ranges: Sequence[tuple[int, int, str]]) -> None:
    """Keep these (offset, end, why) of a file in its run's folder, on the disk when this returns."""
    try:
        with path.open("rb") as file:
            lines = [encode(_aside(file.read(end - start) if file.seek(start) >= 0 else b"", start, why))
                     for start, end, why in ranges]
        descriptor = os.open(folder / QUARANTINE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            write_all(descriptor, b"".join(line + b"\n" for line in lines))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{folder / QUARANTINE}: cannot be written: {error.strerror}") from error


def cut(path: Path, size: int) -> None:
    """Everything from an offset on goes."""
    try:
        os.truncate(path, size)
    except OSError as error:
        raise StoreError(f"{path}: cannot be cut: {error.strerror}") from error


def rewrite_without(path: Path, ranges: Sequence[tuple[int, int, str]]) -> None:
    """The same file without these ranges; a crash leaves the old one or the new one."""
    part = path.with_name(f".{path.name}.repair")
    try:
        with path.open("rb") as source, part.open("wb") as target:
            start = 0
            for offset, end, _ in (*ranges, (path.stat().st_size, 0, "")):
                source.seek(start)
                _copy(source.fileno(), target.fileno(), start, offset - start)
                start = end
            os.fsync(target.fileno())
        os.chmod(part, path.stat().st_mode & 0o7777)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be repaired: {error.strerror}") from error


def _copy(source: int, target: int, offset: int, count: int) -> None:
    while count > 0:
        content = os.pread(source, min(count, 1 << 22), offset)
        if not content:
            return
        write_all(target, content)
        offset, count = offset + len(content), count - len(content)


def _aside(content: bytes, offset: int, why: str) -> Aside:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Aside(offset, len(content), why, base64=base64.b64encode(content).decode())
    return Aside(offset, len(content), why, text=text)
