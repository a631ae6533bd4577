"""One row of each task, kept on the disk until it is asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Raw

from rollmill.types import decode, encode

_TABLE = "CREATE TABLE sample (task, agent, rollout, fields, UNIQUE (task, agent))"
_KEEP = (
    "INSERT INTO sample VALUES (?, ?, ?, ?) ON CONFLICT (task, agent) DO UPDATE SET "
    "rollout = excluded.rollout, fields = excluded.fields WHERE excluded.rollout < rollout"
)


class Samples:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def offer(self, task_index: int, agent: str, rollout_index: int, fields: dict[str, Raw]) -> None:
        """The one of the lowest rollout stays."""
        self._connection.execute(_KEEP, (task_index, agent, rollout_index, encode(fields)))

    def of(self, task_index: int, agent: str) -> dict[str, Raw] | None:
        """The agent's own, else anybody's."""
        query = "SELECT fields FROM sample WHERE task = ? ORDER BY agent != ? LIMIT 1"
        found = self._connection.execute(query, (task_index, agent)).fetchone()
        return found and decode(found[0], type=dict[str, Raw])


@contextmanager
def samples_in(folder: Path) -> Iterator[Samples]:
    """In a scratch database there."""
    with closing(sqlite3.connect(folder / "samples.sqlite", isolation_level=None)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -32000"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute(_TABLE)
        connection.execute("BEGIN")
        yield Samples(connection)
