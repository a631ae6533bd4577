"""Some rows of a source that follow each other: what is planned at once, and known again when it has not changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from rollmill.types import Task

STRETCH = 256
"""How many rows are read at once."""
_STRETCH_BYTES = 1 << 20
"""Or fewer, where they are long: nothing else happens while they are parsed."""

Row = tuple[int, bytes]
"""A row of a file with the number of its line."""


class Planned(NamedTuple):
    """A task, the agent that plays it, and the indices that its row brings."""

    agent: str
    task: Task
    task_index: int | None = None
    rollout_index: int | None = None


class Stretch:
    """Rows that are parsed when they are asked for. Without a row it says that none have come."""

    def __init__(self, source: str, number: int, rows: Sequence[Any], parse: Callable[[Any], Planned]) -> None:
        self.source, self.number = source, number
        self._rows, self._parse = rows, parse
        self.hash = b""
        """What tells whether the rows are those of the last time; nothing, where reading them anew costs nothing."""
        self.part = 0
        """What of the source they are of, where that may go while others stay."""
        self.gone: tuple[int, ...] = ()
        """The parts that have gone before these rows came."""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Planned:
        """Raises `ConfigError` for a row that is wrong."""
        return self._parse(self._rows[place])

    def first(self, count: int) -> Stretch:
        """Its first rows alone."""
        if count >= len(self):
            return self
        some = Stretch(self.source, self.number, self._rows[:count], self._parse)
        some.part, some.gone = self.part, self.gone
        return some


class Cutter:
    """Cuts the rows of one file into stretches, at the same places however few of them come at a time."""

    def __init__(
        self, source: str, parse: Callable[[Row], Planned], *, salt: bytes | None = None, part: int = 0
    ) -> None:
        """With a `salt`, which stands for all that makes other tasks of the same rows, stretches have a hash."""
        self._source, self._parse, self._salt, self._part = source, parse, salt, part
        self._number = 0
        self._rows: list[Row] = []
        self._size = self._given = 0

    def add(self, row: Row) -> Stretch | None:
        """A stretch, if that is the last row of one."""
        self._rows.append(row)
        self._size += len(row[1])
        if self._given + len(self._rows) < STRETCH and self._size < _STRETCH_BYTES:
            return None
        stretch = self.rest()
        self._number, self._size, self._given = self._number + 1, 0, 0
        return stretch

    def rest(self) -> Stretch | None:
        """The rows that have come since the last one."""
        if not self._rows:
            return None
        stretch = Stretch(self._source, self._number, self._rows, self._parse)
        stretch.part = self._part
        # What begins in the middle would be taken for the beginning by whoever reads it all at once.
        if self._salt is not None and not self._given:
            stretch.hash = sha256(self._salt + b"\n".join(content for _, content in self._rows)).digest()
        self._given += len(self._rows)
        self._rows = []
        return stretch


def none_yet() -> Stretch:
    """What a source gives that has no rows for now."""
    return Stretch("", 0, (), _never)


def _never(_: Any) -> Planned:
    raise LookupError
