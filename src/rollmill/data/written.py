"""Files of rows and of numbers, there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollmill.store.folder import write_whole
from rollmill.store.schema import one_line
from rollmill.store.streamed import replacing
from rollmill.types import encode


def write_rows(path: Path, folder: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """How many they were; `folder` is scratch on the same disk."""
    count = 0
    with replacing(path, folder) as file:
        for row in rows:
            file.write(one_line(encode(row)) + b"\n")
            count += 1
    return count


def write_json(path: Path, value: Any) -> None:
    write_whole(path, msgspec.json.format(encode(value), indent=2) + b"\n")
