"""Where every rollout of an output is and what it came to, in SQLite: rebuilt from the files whenever it is not true.

One process writes it; others may read it while it does. Nothing is only here but the task indices of rollouts that
have not ended, which a lost index gives anew in input order.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rollmill.store.lines import Place
from rollmill.store.reader import NAME, VERSION, Clusters, Reader, TornIndexError, fault, read_index
from rollmill.store.schema import Entry
from rollmill.types import encode

__all__ = ["NAME", "Added", "Clusters", "Held", "Index", "NewTask", "TaskRow", "TornIndexError", "read_index"]

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE agent (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE asker (id INTEGER PRIMARY KEY, run TEXT UNIQUE);
-- How many slots of it were asked for at the most, and by which run.
CREATE TABLE task (
    id INTEGER PRIMARY KEY, identity BLOB, agent INTEGER, task_index INTEGER, given INTEGER,
    asked INTEGER, asker INTEGER
);
-- Those tasks that are not among the last ones.
CREATE TABLE task_identity (identity BLOB, agent INTEGER, task INTEGER, PRIMARY KEY (identity, agent)) WITHOUT ROWID;
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
CREATE TABLE seen (source TEXT, number INTEGER, digest BLOB, tasks BLOB, PRIMARY KEY (source, number)) WITHOUT ROWID;
"""
_COLUMNS = 24
_INSERT = "INSERT INTO rollout VALUES (" + ",".join("?" * _COLUMNS) + ")"  # noqa: S608
_SLOT = "WHERE task_index = ? AND task = ? AND occurrence = ? AND repeat = ?"
_FAILURE = 12
_MOST_VALUES = 512
"""How many values one query takes; SQLite has a limit, and parsing a long one takes its time."""
_SORTED_AT_ONCE = 1 << 11
"""An identity is as good as random, so tasks that were sorted in one by one would have a page written for each. More
at once would hold up the event loop: where there are a million, each of them is on another page."""

TaskKey = tuple[str, bytes]
"""The agent and the identity of a task."""


class TaskRow(NamedTuple):
    """A task that the index knows."""

    id: int
    task_index: int
    given: bool
    asked: int = 0
    """How many slots of it were asked for at the most, as far as that is known."""


class NewTask(NamedTuple):
    agent: str
    identity: bytes
    task_index: int
    given: bool
    """Whether its row brought the index."""
    asked: int = 0


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


_NEW = Added(new=True)


class Index(Reader):
    """Opened by the one who holds the output's lock. Not for two threads at once."""

    def __init__(self, path: Path | None) -> None:
        """Without a path it is scratch, and gone when it is closed."""
        super().__init__(path, _connect(path))
        self._agents: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._askers: dict[str, int] = {}
        self._recent: dict[TaskKey, TaskRow] = {}
        self._sorted = self._next_id = 0
        self._read_known()

    def clear(self) -> None:
        """Forget everything: it will be read from the files again."""
        self.close()
        _remove(self.path)
        self._connection = _connect(self.path)
        self._read_known()

    def settle(self) -> bool:
        """Bring it to the disk; False where readers prevent that."""
        try:
            self._connection.execute("PRAGMA synchronous = NORMAL")
            busy, logged, settled = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            raise fault(self.path, error) from error
        return not busy and logged == settled

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is changed within, or nothing."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._read_known()
                raise
        except sqlite3.Error as error:
            raise fault(self.path, error) from error

    def note(self, name: str, value: Any) -> None:
        self._connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    # Tasks.

    def tasks(self, keys: Iterable[TaskKey]) -> dict[TaskKey, TaskRow]:
        """Those of these that are known."""
        found: dict[TaskKey, TaskRow] = {}
        others: dict[TaskKey, None] = {}
        for key in keys:
            if key in self._recent:
                found[key] = self._recent[key]
            else:
                others[key] = None
        if self._sorted:
            query = (
                "SELECT task.agent, task.identity, id, task_index, given, asked FROM task_identity "
                "JOIN task ON id = task WHERE task_identity.identity"
            )
            rows = map(self._known, self._among(query, [identity for _, identity in others]))
            found |= {key: task for key, task in rows if key in others}
        return found

    def add_tasks(self, tasks: Sequence[NewTask], run: str = "") -> list[TaskRow]:
        """Tasks that are new, and the run that asks for them."""
        agents = {agent: self._agent(agent) for agent in dict.fromkeys(task.agent for task in tasks)}
        asker = self._asker(run)
        first, self._next_id = self._next_id, self._next_id + len(tasks)
        added = [TaskRow(id, task.task_index, task.given, task.asked) for id, task in enumerate(tasks, first)]
        self._connection.executemany(
            "INSERT INTO task VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (id, identity, agents[agent], index, given, asked, asker)
                for id, (agent, identity, index, given, asked) in enumerate(tasks, first)
            ],
        )
        self._recent.update(zip([task[:2] for task in tasks], added, strict=True))
        while len(self._recent) >= 2 * _SORTED_AT_ONCE:
            self._sort_in()
        return added

    def raise_asked(self, tasks: Mapping[TaskKey, TaskRow], run: str) -> None:
        """More slots of these tasks are asked for than were before."""
        asker = self._asker(run)
        rows = [(task.asked, asker, task.id) for task in tasks.values()]
        self._connection.executemany("UPDATE task SET asked = ?, asker = ? WHERE id = ?", rows)
        self._recent.update({key: task for key, task in tasks.items() if key in self._recent})

    def task_indices(self) -> Iterator[tuple[int, bool]]:
        """Every index in use, and whether a row brought it."""
        return self._rows("SELECT task_index, given FROM task")

    def task_rows(self, ids: Sequence[int]) -> dict[int, tuple[str, bytes, TaskRow]]:
        """The agent, the identity and the rest of the tasks with these numbers."""
        query = "SELECT id, agent, identity, task_index, given, asked FROM task WHERE id"
        return {
            id: (self._names[agent], identity, TaskRow(id, index, bool(given), asked))
            for id, agent, identity, index, given, asked in self._among(query, ids)
        }

    # Rollouts.

    def held(self, indices: Iterable[int]) -> Mapping[int, Mapping[int, Sequence[Held]]]:
        """What has ended of the tasks with these indices: by index, by task."""
        wanted = sorted(set(indices))
        query = "SELECT task_index, task, occurrence, repeat, rollout_index, failure IS NOT NULL FROM rollout"
        if wanted and wanted[-1] - wanted[0] < 4 * len(wanted):
            found = self._rows(f"{query} WHERE task_index BETWEEN ? AND ?", wanted[0], wanted[-1])
        else:
            found = self._among(f"{query} WHERE task_index", wanted)
        result: defaultdict[int, defaultdict[int, list[Held]]] = defaultdict(lambda: defaultdict(list))
        for index, task, *rest in found:
            result[index][task].append(Held(*rest))
        return result

    def add(self, entries: Sequence[tuple[Entry, Place]]) -> list[Added]:
        """Index what has ended; a slot that has a rollout already is not new.

        A rollout with a reward takes the place of a failure, whichever came first.
        """
        if not entries:
            return []
        tasks = self._ids(entries)
        rows = [_row(task, entry, place) for task, (entry, place) in zip(tasks, entries, strict=True)]
        return [_NEW] * len(rows) if self._add_all(rows) else [self._add(row) for row in rows]

    def _add_all(self, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Add them at once, if all are new."""
        self._connection.execute("SAVEPOINT rollouts")
        try:
            self._connection.executemany(_INSERT, rows)
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK TO rollouts")
            return False
        finally:
            self._connection.execute("RELEASE rollouts")
        return True

    def _add(self, row: tuple[Any, ...]) -> Added:
        try:
            self._connection.execute(_INSERT, row)
        except sqlite3.IntegrityError:
            return self._replace(row)
        return _NEW

    def _replace(self, row: tuple[Any, ...]) -> Added:
        found = self._connection.execute(f"SELECT failure, offset, inner FROM rollout {_SLOT}", row[:4])  # noqa: S608
        was, *place = found.fetchone()
        if was is None:
            # A failure beside a reward is no second rollout: an attempt of before, or a retry that failed.
            # Nor is the same row, read again after a crash.
            doubled = row[_FAILURE] is None and place != [row[5], row[7]]
            return Added(new=False, doubled=doubled)
        self._connection.execute(f"DELETE FROM rollout {_SLOT}", row[:4])  # noqa: S608
        self._connection.execute(_INSERT, row)
        return Added(new=True, was=was)

    def _ids(self, entries: Sequence[tuple[Entry, Place]]) -> list[TaskRow]:
        """The tasks of stored rollouts, which may be new here: the files know them, the index was lost."""
        keys = [(entry.slot.agent, bytes.fromhex(entry.slot.task)) for entry, _ in entries]
        with suppress(KeyError):
            return [self._recent[key] for key in keys]
        known = self.tasks(dict.fromkeys(keys))
        missing: dict[TaskKey, int] = {}
        for key, (entry, _) in zip(keys, entries, strict=True):
            if key not in known:
                missing.setdefault(key, entry.slot.task_index)
        if missing:
            # Whether their rows brought the index is not recorded; it is taken as brought, which refuses nothing.
            added = self.add_tasks([NewTask(*key, index, given=True) for key, index in missing.items()])
            known |= dict(zip(missing, added, strict=True))
        return [known[key] for key in keys]

    # What the lines of an input were.

    def seen(self, source: str, number: int) -> tuple[bytes, bytes] | None:
        return next(self._rows("SELECT digest, tasks FROM seen WHERE source = ? AND number = ?", source, number), None)

    def note_seen(self, source: str, number: int, digest: bytes, tasks: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", (source, number, digest, tasks))

    # The names of agents, and queries.

    def _read_known(self) -> None:
        """The names of agents, and the tasks that are not sorted in."""
        self._agents = dict(self._rows("SELECT name, id FROM agent"))
        self._names = {number: name for name, number in self._agents.items()}
        self._askers = {}
        self._next_id = (self._one("SELECT max(id) FROM task") or 0) + 1
        self._sorted = self.about("sorted") or 0
        query = "SELECT agent, identity, id, task_index, given, asked FROM task WHERE id > ? ORDER BY id"
        self._recent = dict(map(self._known, self._rows(query, self._sorted)))

    def _known(self, row: tuple[Any, ...]) -> tuple[TaskKey, TaskRow]:
        agent, identity, id, index, given, asked = row
        return (self._names[agent], identity), TaskRow(id, index, bool(given), asked)

    def _sort_in(self) -> None:
        """The older half of those in memory; the others have rollouts that are still to come, mostly."""
        older = dict(itertools.islice(self._recent.items(), _SORTED_AT_ONCE))
        before, self._sorted = self._sorted, max(task.id for task in older.values())
        self._connection.execute(
            "INSERT INTO task_identity SELECT identity, agent, id FROM task WHERE id BETWEEN ? AND ? ORDER BY 1, 2",
            (before + 1, self._sorted),
        )
        self.note("sorted", self._sorted)
        for key in older:
            del self._recent[key]

    def _agent(self, name: str) -> int:
        if name not in self._agents:
            number = self._agents[name] = len(self._agents) + 1
            self._names[number] = name
            self._connection.execute("INSERT INTO agent VALUES (?, ?)", (number, name))
        return self._agents[name]

    def _asker(self, run: str) -> int | None:
        if not run:
            return None
        if run not in self._askers:
            self._connection.execute("INSERT OR IGNORE INTO asker (run) VALUES (?)", (run,))
            self._askers[run] = self._one("SELECT id FROM asker WHERE run = ?", run)
        return self._askers[run]

    def _among(self, query: str, values: Iterable[Any]) -> Iterator[Any]:
        """The rows where what the query ends with is one of these."""
        rest = iter(values)
        while some := list(itertools.islice(rest, _MOST_VALUES)):
            # A query of each length would stay prepared, tens of kilobytes each: few lengths are enough.
            some += some[-1:] * ((1 << (len(some) - 1).bit_length()) - len(some))
            yield from list(self._rows(f"{query} IN ({','.join('?' * len(some))})", *some))


def _row(task: TaskRow, entry: Entry, place: Place) -> tuple[Any, ...]:
    slot, failure = entry.slot, entry.failure
    return (
        task.task_index,
        task.id,
        slot.occurrence,
        slot.repeat,
        slot.rollout_index,
        place.offset,
        place.length,
        place.inner,
        entry.reward,
        _json(entry.parts) if entry.parts else None,
        _json(entry.metrics) if entry.metrics else None,
        entry.stop,
        None if failure is None else f"{failure.where}: {failure.kind}",
        entry.attempt,
        entry.turns,
        entry.tool_calls,
        entry.input_tokens,
        entry.output_tokens,
        entry.cached_tokens,
        entry.reasoning_tokens,
        _json(entry.seconds) if entry.seconds else None,
        _json(entry.labels) if entry.labels else None,
        entry.model,
        entry.run,
    )


def _json(named: Mapping[str, float | str]) -> str:
    return encode(named).decode()


def _connect(path: Path | None) -> sqlite3.Connection:
    """What is no database, or a torn one after a power cut, is made anew."""
    try:
        return _prepared(path)
    except sqlite3.Error as error:
        found = fault(path, error)
        if not isinstance(found, TornIndexError):
            raise found from error
    _remove(path)
    try:
        return _prepared(path)
    except sqlite3.Error as error:
        raise fault(path, error) from error


def _prepared(path: Path | None) -> sqlite3.Connection:
    # Written by one thread at a time, but not always the same.
    connection = sqlite3.connect(path or "", isolation_level=None, check_same_thread=False, timeout=30)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # After a power cut it may be torn; then it is rebuilt.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -8000")
        if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                connection.execute(f"DROP TABLE {name}")
            connection.executescript(_TABLES)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("SELECT count(*) FROM about").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _remove(path: Path | None) -> None:
    if path is None:
        return
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
