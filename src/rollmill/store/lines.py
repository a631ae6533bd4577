"""The lines of a JSONL file, compressed or not, each with its place: what every reader of an output begins with."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard
from msgspec import Struct

FRAME = b"\x28\xb5\x2f\xfd"
LONGEST_WINDOW = 1 << 31
_CHUNK = 1 << 14
_MARK = b"\xef\xbb\xbf"


class Place(Struct, frozen=True):
    """Where a line is: in a compressed file, in the frame at `offset`, `inner` bytes after its beginning."""

    offset: int
    length: int
    """Without its line break."""
    inner: int = 0


class Line(Struct, frozen=True):
    """What a crash left without a line break is not `whole`."""

    place: Place
    """Where its content is: without line break and byte order mark."""
    content: bytes
    start: int
    end: int
    """Where the next line begins, or in a compressed file the next frame."""
    whole: bool = True


class Broken(Struct, frozen=True):
    """Bytes of a compressed file that are no frame; at its end, the frame that a crash tore."""

    start: int
    end: int
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
        with zstandard.ZstdDecompressor(max_window_size=LONGEST_WINDOW).stream_reader(file) as frame:
            frame.seek(place.inner)
            return frame.read(place.length)


def _plain(file: BinaryIO, start: int) -> Iterator[Line]:
    for raw in file:
        end = start + len(raw)
        content, skipped = _content(raw)
        yield Line(Place(start + skipped, len(content)), content, start, end, whole=raw.endswith(b"\n"))
        start = end


def _content(raw: bytes) -> tuple[bytes, int]:
    """A line without line break and byte order mark (outputs put together have them anywhere), and that mark's size."""
    row = raw.rstrip(b"\r\n")
    content = row.removeprefix(_MARK)
    return content, len(row) - len(content)


def _compressed(file: BinaryIO, start: int) -> Iterator[Line | Broken]:
    """One frame for each group that was committed, so a crash can tear the last one only."""
    size = file.seek(0, io.SEEK_END)
    while start < size:
        content, end = _frame(file, start)
        if content is None:
            # Look for the next frame; without one, this was the last and is torn.
            following = _find_frame(file, start + 1)
            yield Broken(start, following or size, last=following is None)
            start = following or size
            continue
        inner = 0
        for raw in io.BytesIO(content):
            row, skipped = _content(raw)
            yield Line(Place(start, len(row), inner + skipped), row, start, end)
            inner += len(raw)
        start = end


def _frame(file: BinaryIO, start: int) -> tuple[bytes | None, int]:
    """The content of the frame that begins there, and where it ends; no content where there is no whole frame."""
    file.seek(start)
    decompressor = zstandard.ZstdDecompressor(max_window_size=LONGEST_WINDOW).decompressobj()
    content: list[bytes] = []
    # What follows the frame is given back, so the chunks are small.
    while chunk := file.read(_CHUNK):
        start += len(chunk)
        try:
            content.append(decompressor.decompress(chunk))
        except zstandard.ZstdError:
            return None, start
        if decompressor.eof:
            return b"".join(content), start - len(decompressor.unused_data)
    return None, start


def _find_frame(file: BinaryIO, start: int) -> int | None:
    """Where the next bytes are that begin a frame."""
    file.seek(start)
    rest = b""
    while chunk := file.read(_CHUNK):
        window = rest + chunk
        if (found := window.find(FRAME)) >= 0:
            return start - len(rest) + found
        start += len(chunk)
        rest = window[-3:]
    return None
