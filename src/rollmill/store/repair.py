"""What must not stay in an output is moved aside: nothing is deleted, and every other line stays as it is."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from rollmill.errors import StoreError
from rollmill.files import sync_folder, write_all
from rollmill.store.appended import Appended
from rollmill.types import encode

QUARANTINE = "quarantine.ndjson"
_CHUNK = 1 << 22


class Range(NamedTuple):
    """Bytes of an output that have to go, and why."""

    start: int
    end: int
    why: str


class Aside(Struct, frozen=True, omit_defaults=True):
    """Bytes that were moved out of an output: where they were, why, and what they are."""

    offset: int
    length: int
    why: str
    text: str | None = None
    base64: str | None = None


def set_aside(folder: Path, path: Path, ranges: Sequence[Range]) -> None:
    """Keep these bytes of a file in its run's folder, on the disk when this returns.

    A crash before they are gone from the file brings the same ranges here again: what the quarantine ends with
    already is not written twice. Only a crash in the middle of this leaves some of them in it twice.
    """
    try:
        quarantine = Appended(folder / QUARANTINE)
    except OSError as error:
        raise StoreError(f"{folder / QUARANTINE}: cannot be written: {error.strerror}") from error
    try:
        if not _has(quarantine.path, path, ranges):
            for record in _records(path, ranges):
                quarantine.write(record)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        quarantine.close()


def cut(path: Path, size: int) -> None:
    """Everything from an offset on goes."""
    try:
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: cannot be cut: {error.strerror}") from error


def rewrite_without(path: Path, ranges: Sequence[Range]) -> None:
    """The same file without these ranges, which are in order; a crash leaves the old one or the new one."""
    path = path.resolve()
    part = part_of(path)
    try:
        with path.open("rb") as source, part.open("wb") as target:
            size = os.fstat(source.fileno()).st_size
            kept = zip((0, *(one.end for one in ranges)), (*(one.start for one in ranges), size), strict=True)
            for start, end in kept:
                _copy(source.fileno(), target.fileno(), start, end)
            os.fsync(target.fileno())
        part.chmod(path.stat().st_mode & 0o7777)
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be repaired: {error.strerror}") from error


def part_of(path: Path) -> Path:
    """Where an output is written anew; what is found there was left by a crash."""
    path = path.resolve()
    return path.with_name(f".{path.name}.repair")


def _records(path: Path, ranges: Sequence[Range]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for start, end, why in ranges:
            file.seek(start)
            yield encode(_aside(file.read(end - start), start, why)) + b"\n"


def _has(quarantine: Path, path: Path, ranges: Sequence[Range]) -> bool:
    """Whether it ends with just these."""
    length = sum(map(len, _records(path, ranges)))
    with quarantine.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < length:
            return False
        file.seek(size - length)
        return all(file.read(len(record)) == record for record in _records(path, ranges))


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        content = os.pread(source, min(end - start, _CHUNK), start)
        if not content:
            return
        write_all(target, content)
        start += len(content)


def _aside(content: bytes, offset: int, why: str) -> Aside:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Aside(offset, len(content), why, base64=base64.b64encode(content).decode())
    return Aside(offset, len(content), why, text=text)
