"""Where every rollout of an output is and what it came to, in SQLite: rebuilt from the files whenever it is not true.

One process writes it; others may read it while it does. Nothing is only here but the task indices of rollouts that
have not ended, which a lost index gives anew in input order.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rollmill.errors import StoreError
from rollmill.store.lines import Place
from rollmill.store.schema import Entry
from rollmill.types import encode

NAME = "index.sqlite"
_VERSION = 1
_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE agent (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE task (id INTEGER PRIMARY KEY, identity BLOB, agent INTEGER, task_index INTEGER, given INTEGER);
CREATE UNIQUE INDEX task_identity ON task (identity, agent);
-- The order of the key is that of the input, nearly: rows go to the end.
CREATE TABLE rollout (
    task_index INTEGER, task INTEGER, occurrence INTEGER, repeat INTEGER, rollout_index INTEGER,
    offset INTEGER, length INTEGER, inner INTEGER,
    reward REAL, parts TEXT, metrics TEXT, stop TEXT, failure TEXT, attempt INTEGER, turns INTEGER, tool_calls INTEGER,
    input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER, reasoning_tokens INTEGER,
    seconds TEXT, labels TEXT, model TEXT, run TEXT,
    PRIMARY KEY (task_index, task, occurrence, repeat)
) WITHOUT ROWID;
-- What a line of an input was when it was last read: a line that has not changed is not parsed again.
CREATE TABLE seen (source TEXT, number INTEGER, hashes BLOB, tasks BLOB, PRIMARY KEY (source, number)) WITHOUT ROWID;
"""
_COLUMNS = 24
_INSERT = f"INSERT INTO rollout VALUES ({','.join('?' * _COLUMNS)})"
_numbers = msgspec.json.Decoder(dict[str, float])


class TaskRow(NamedTuple):
    """A task that the index knows."""

    id: int
    task_index: int
    given: bool


class Held(NamedTuple):
    """A slot that has ended."""

    occurrence: int
    repeat: int
    rollout_index: int
    failed: bool


class Added(NamedTuple):
    """What became of a row that was to be indexed."""

    new: bool
    doubled: bool = False
    was: str | None = None
    """The failure whose place it took."""


class Index:
    """Opened by the one who holds the output's lock. Not for two threads at once."""

    def __init__(self, path: Path | None) -> None:
        """Without a path it is scratch, and gone when it is closed."""
        self.path = path
        self._connection = self._open()
        self._agents: dict[str, int] = dict(self._rows("SELECT name, id FROM agent"))
        self._names = {number: name for name, number in self._agents.items()}
        self._next_id: int = (self._one("SELECT max(id) FROM task") or 0) + 1

    # What is known of it as a whole.

    def about(self, name: str) -> Any:
        return self._one("SELECT value FROM about WHERE name = ?", name)

    def note(self, name: str, value: Any) -> None:
        self._connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    def clear(self) -> None:
        """Forget everything: it will be read from the files again."""
        self.close()
        if self.path is not None:
            for ending in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        self.__init__(self.path)  # type: ignore[misc]

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be written: {error}") from error

    def close(self) -> None:
        self._connection.close()

    # Tasks.

    def tasks(self, keys: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], TaskRow]:
        """Those of these (agent, identity) that are known."""
        marks = ",".join("?" * len(keys))
        found = self._rows(
            f"SELECT identity, agent, id, task_index, given FROM task WHERE identity IN ({marks})",  # noqa: S608
            *(identity for _, identity in keys),
        )
        return {
            (self._names[agent], identity): TaskRow(id, index, bool(given))
            for identity, agent, id, index, given in found
        }

    def add_tasks(self, tasks: Sequence[tuple[str, bytes, int, bool]]) -> list[TaskRow]:
        """New tasks by (agent, identity, task index, whether the row brought that index)."""
        first, self._next_id = self._next_id, self._next_id + len(tasks)
        rows = [
            (first + n, identity, self._agent(agent), index, given)
            for n, (agent, identity, index, given) in enumerate(tasks)
        ]
        self._connection.executemany("INSERT INTO task VALUES (?, ?, ?, ?, ?)", rows)
        return [TaskRow(row[0], row[3], bool(row[4])) for row in rows]

    def task_indices(self) -> Iterator[tuple[int, bool]]:
        """Every index in use, and whether a row brought it."""
        return self._rows("SELECT task_index, given FROM task")

    # Rollouts.

    def held(self, indices: Iterable[int]) -> dict[int, dict[int, list[Held]]]:
        """What has ended of the tasks with these indices: by index, by task."""
        wanted = sorted(set(indices))
        query = "SELECT task_index, task, occurrence, repeat, rollout_index, failure IS NOT NULL FROM rollout WHERE "
        if wanted and wanted[-1] - wanted[0] < 4 * len(wanted):
            found = self._rows(f"{query} task_index BETWEEN ? AND ?", wanted[0], wanted[-1])
        else:
            found = self._rows(f"{query} task_index IN ({','.join('?' * len(wanted))})", *wanted)
        result: dict[int, dict[int, list[Held]]] = defaultdict(lambda: defaultdict(list))
        for index, task, *rest in found:
            result[index][task].append(Held(*rest))
        return result

    def add(self, entries: Sequence[tuple[Entry, Place]]) -> list[Added]:
        """Index what has ended; a slot that has a rollout already is not new.

        A rollout with a reward takes the place of a failure, whichever came first.
        """
        ids = self._ids([(entry.slot.agent, entry.slot.task, entry.slot.task_index) for entry, _ in entries])
        return [self._add(task, entry, place) for task, (entry, place) in zip(ids, entries, strict=True)]

    def _add(self, task: TaskRow, entry: Entry, place: Place) -> Added:
        slot, failure = entry.slot, entry.failure
        row = (
            task.task_index,
            task.id,
            slot.occurrence,
            slot.repeat,
            slot.rollout_index,
            place.offset,
            place.length,
            place.inner,
            entry.reward,
            encode(entry.parts).decode() if entry.parts else None,
            encode(entry.metrics).decode() if entry.metrics else None,
            entry.stop,
            None if failure is None else f"{failure.where}: {failure.kind}",
            entry.attempt,
            entry.turns,
            entry.tool_calls,
            entry.input_tokens,
            entry.output_tokens,
            entry.cached_tokens,
            entry.reasoning_tokens,
            encode(entry.seconds).decode(),
            encode(entry.labels).decode() if entry.labels else None,
            entry.model,
            entry.run,
        )
        try:
            self._connection.execute(_INSERT, row)
        except sqlite3.IntegrityError:
            return self._replace(row, failed=failure is not None)
        return Added(new=True)

    def _replace(self, row: tuple[Any, ...], *, failed: bool) -> Added:
        where = "WHERE task_index=? AND task=? AND occurrence=? AND repeat=?"
        was = self._one(f"SELECT failure FROM rollout {where}", *row[:4])  # noqa: S608
        if was is None:
            # A failure beside a reward is no second rollout: an attempt of before, or a retry that failed.
            return Added(new=False, doubled=not failed)
        self._connection.execute(f"DELETE FROM rollout {where}", row[:4])  # noqa: S608
        self._connection.execute(_INSERT, row)
        return Added(new=True, was=was)

    def _ids(self, tasks: Sequence[tuple[str, str, int]]) -> list[TaskRow]:
        """The tasks of stored rollouts, which may be new here: the files know them, the index was lost."""
        keys = [(agent, bytes.fromhex(task)) for agent, task, _ in tasks]
        known = self.tasks(list(dict.fromkeys(keys)))
        missing = {
            key: index for key, (_, _, index) in zip(keys, tasks, strict=True) if key not in known
        }
        if missing:
            # Whether their rows brought the index is not recorded; it is taken as brought, which refuses nothing.
            added = self.add_tasks([(agent, identity, index, True) for (agent, identity), index in missing.items()])
            known |= dict(zip(missing, added, strict=True))
        return [known[key] for key in keys]

    # What the lines of an input were.

    def seen(self, source: str, number: int) -> tuple[bytes, bytes] | None:
        found = list(self._rows("SELECT hashes, tasks FROM seen WHERE source=? AND number=?", source, number))
        return found[0] if found else None

    def note_seen(self, source: str, number: int, hashes: bytes, tasks: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", (source, number, hashes, tasks))

    def task_rows(self, ids: Sequence[int]) -> dict[int, tuple[str, bytes, TaskRow]]:
        marks = ",".join("?" * len(ids))
        query = f"SELECT id, agent, identity, task_index, given FROM task WHERE id IN ({marks})"  # noqa: S608
        return {
            id: (self._names[agent], identity, TaskRow(id, index, bool(given)))
            for id, agent, identity, index, given in self._rows(query, *ids)
        }

    # The connection.

    def _agent(self, name: str) -> int:
        if name not in self._agents:
            number = self._agents[name] = len(self._agents) + 1
            self._names[number] = name
            self._connection.execute("INSERT INTO agent VALUES (?, ?)", (number, name))
        return self._agents[name]

    def _rows(self, query: str, *values: Any) -> Iterator[Any]:
        return self._connection.execute(query, values)

    def _one(self, query: str, *values: Any) -> Any:
        found = self._connection.execute(query, values).fetchone()
        return None if found is None else found[0]

    def _open(self) -> sqlite3.Connection:
        # Written by one thread at a time, but not always the same.
        connection = sqlite3.connect(self.path or "", isolation_level=None, check_same_thread=False, timeout=30)
        try:
            _prepare(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            if self.path is None or isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"{self.path}: cannot be opened: {error}") from error
            # What is no database, or a torn one after a power cut, is made anew.
            self.path.unlink()
            return self._open()
        return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # After a power cut it may be torn; then it is rebuilt.
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -16000")
    if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            connection.execute(f"DROP TABLE {name}")
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
