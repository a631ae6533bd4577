"""Columns in a terminal of any width."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

_GAP = 2
# A last column that is narrower than this is no longer read.
_NARROWEST = 20


def terminal_width() -> int:
    return min(shutil.get_terminal_size().columns, 120)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Columns as wide as they need to be, the last one over several lines; blocks where that does not fit."""
    widths = [max(map(len, column)) + _GAP for column in zip(header[:-1], *(row[:-1] for row in rows), strict=True)]
    if width - sum(widths) < _NARROWEST:
        for row in rows:
            yield from _block(header, row, width)
        return
    for row in (header, *rows):
        first = "".join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True))
        yield from _wrapped(first, row[-1], width)


def _block(header: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    yield from _wrapped("", row[0], width)
    for name, cell in zip(header[1:], row[1:], strict=True):
        if cell:
            yield from _wrapped(f"  {name}: ", cell, width)


def _wrapped(first: str, text: str, width: int) -> Iterator[str]:
    """`text` after `first`, and below where it began if there is room for that."""
    indent = " " * (len(first) if width - len(first) >= _NARROWEST else 4)
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    yield from lines or [first.rstrip()]
