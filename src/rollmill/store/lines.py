"""The lines of a JSONL file, compressed or not, each with its place: what every reader of an output begins with."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard
from msgspec import Struct

FRAME = b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
LONGEST_FRAME = 1 << 31


class Place(Struct, frozen=True):
    """Where a line is: in a compressed file, in the frame at `offset`, `inner` bytes after its beginning."""

    offset: int
    length: int
    """Without its line break."""
    inner: int = 0


class Line(Struct, frozen=True):
    """`end` is where the next line begins; what a crash left without a line break is not `whole`."""

    place: Place
    content: bytes
    end: int
    whole: bool = True


class Broken(Struct, frozen=True):
    """Bytes of a compressed file that are no frame; at its end, the frame that a crash tore."""

    offset: int
    content: bytes
    last: bool


def is_compressed(path: Path) -> bool:
    return path.name.endswith(".zst")


def read_lines(path: Path, start: int = 0) -> Iterator[Line | Broken]:
    """From an offset on, which is the beginning of a line or of a frame."""
    with path.open("rb") as file:
        file.seek(start)
        yield from _compressed(file, start) if is_compressed(path) else _plain(file, start)


def read_at(path: Path, place: Place) -> bytes:
    """One line."""
    with path.open("rb") as file:
        file.seek(place.offset)
        if not is_compressed(path):
            return file.read(place.length)
        with zstandard.ZstdDecompressor().stream_reader(file) as frame:
            frame.read(place.inner)
            return frame.read(place.length)


def _plain(file: BinaryIO, start: int) -> Iterator[Line]:
    offset = start
    for content in file:
        end = offset + len(content)
        row = content.rstrip(b"\r\n")
        yield Line(Place(offset, len(row)), row, end, whole=content.endswith(b"\n"))
        offset = end


def _compressed(file: BinaryIO, start: int) -> Iterator[Line | Broken]:
    """One frame for each group that was committed, so a crash can tear the last one only."""
    window = b""
    offset = start
    while True:
        window, content, size = _frame(file, window)
        if not window:
            return
        if content is None:
            # Look for the next frame; without one, this was the last and is torn.
            following = window.find(FRAME, 1)
            broken, window = (window, b"") if following < 0 else (window[:following], window[following:])
            yield Broken(offset, broken, last=not window)
            offset += len(broken)
            continue
        inner, end = 0, offset + size
        for row in io.BytesIO(content):
            body = row.rstrip(b"\r\n")
            yield Line(Place(offset, len(body), inner), body, end)
            inner += len(row)
        window, offset = window[size:], end


def _frame(file: BinaryIO, window: bytes) -> tuple[bytes, bytes | None, int]:
    """The bytes read so far, the content of the frame that they begin with, and its size; no content, no whole frame."""
    while True:
        if window:
            decompressor = zstandard.ZstdDecompressor(max_window_size=LONGEST_FRAME).decompressobj()
            try:
                content = decompressor.decompress(window)
            except zstandard.ZstdError:
                return window, None, 0
            if decompressor.eof:
                return window, content, len(window) - len(decompressor.unused_data)
        more = file.read(max(_CHUNK, len(window)))
        if not more:
            return window, None, 0
        window += more
