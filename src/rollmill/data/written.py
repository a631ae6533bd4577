"""Files of rows and of numbers, there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from rollmill.files import write_whole
from rollmill.store.lines import is_compressed
from rollmill.store.schema import one_line
from rollmill.store.streamed import replacing
from rollmill.types import encode

_BATCH_BYTES = 1 << 20


def write_rows(path: Path, folder: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """How many they were; `folder` is scratch on the same disk."""
    return write_lines(path, folder, (one_line(encode(row)) + b"\n" for row in rows))


def write_lines(path: Path, folder: Path, lines: Iterable[bytes]) -> int:
    """The same for rows that are lines already. A name that ends in `.zst` is compressed."""
    count, compressed = 0, is_compressed(path)
    with replacing(path, folder) as file:
        for some in _batches(lines):
            content = b"".join(some)
            # A frame for each, so that whoever wants one row need not have all of them.
            file.write(zstandard.compress(content) if compressed else content)
            count += len(some)
    return count


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size >= _BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def write_json(path: Path, value: Any) -> None:
    write_whole(path, msgspec.json.format(encode(value), indent=2) + b"\n")
