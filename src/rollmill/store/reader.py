"""Reading an index, in the process that writes it or in another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rollmill.errors import ConfigError, StoreError

# What SQLite says of a file that is no database, of a torn one, and of one without the tables.
_TORN = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)

# How many instructions of SQLite's lie between two looks at whether to go on: a few milliseconds.
_STEPS = 100_000

NAME = "index.sqlite"
_MOST_NAMED = 10
VERSION = 3


class Clusters(NamedTuple):
    """The rewards of an output summed by task, for statistics in which the rollouts of one task belong together."""

    tasks: int
    """Those with a reward at least."""
    rollouts: int
    total: float
    squares: float
    """The sum over tasks of the square of a task's total reward."""
    cross: float
    """The sum over tasks of total times count."""
    counts: float
    """The sum over tasks of the square of the count."""
    histogram: dict[tuple[int, int], int]
    """How many tasks have so many rollouts, so many of them with a reward of at least 1."""


class LeftOver(NamedTuple):
    """Slots that a run asked for and that have not ended."""

    run: str
    slots: int
    tasks: int
    first: tuple[int, ...]
    """The indices of the first of their tasks."""


_CLUSTERS = """
SELECT count, passed, count(*), sum(total), sum(total * total), sum(total * count), sum(count * count) FROM (
    SELECT count(*) AS count, sum(reward >= 1) AS passed, sum(reward) AS total
    FROM rollout WHERE reward IS NOT NULL AND (:agent IS NULL OR task IN (SELECT id FROM task WHERE agent = :agent))
    GROUP BY task_index, task
) GROUP BY count, passed ORDER BY count, passed
"""


_LEFT_OVER = """
SELECT run, task_index, asked - ended FROM (
    SELECT asker, task_index, asked, (
        SELECT count(*) FROM rollout WHERE rollout.task_index = task.task_index AND rollout.task = task.id
    ) AS ended FROM task WHERE asked > 0
) JOIN asker ON asker.id = asker WHERE asked > ended ORDER BY task_index
"""


class TornIndexError(StoreError):
    """It is no index any more; the files that it is made from are."""


def fault(path: Path | None, error: sqlite3.Error) -> StoreError:
    """What an error of SQLite's means."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _TORN:
        return TornIndexError(f"{path}: damaged: {error}; remove it, the next run makes it anew from the rollouts")
    return StoreError(f"{path}: cannot be used: {error}")


class Reader:
    """Answers from an index. Close it, or enter it."""

    def __init__(self, path: Path | None, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def about(self, name: str) -> Any:
        """What is noted of the output as a whole."""
        return self._one("SELECT value FROM about WHERE name = ?", name)

    def models(self, agent: str) -> set[str]:
        """The models that an agent's rollouts were played with."""
        query = (
            "SELECT DISTINCT model FROM rollout WHERE failure IS NULL AND task IN "
            "(SELECT id FROM task WHERE agent = (SELECT id FROM agent WHERE name = ?))"
        )
        return {model for (model,) in self._rows(query, agent)}

    def clusters(self, agent: str | None = None) -> Clusters:
        """Of the rollouts with a reward: all of them, or one agent's. Nothing is held for each task."""
        number = None if agent is None else self._one("SELECT id FROM agent WHERE name = ?", agent) or 0
        found = list(self._rows(_CLUSTERS, {"agent": number}))
        sums = [sum(column) for column in zip(*(row[2:] for row in found), strict=True)] or [0] * 5
        tasks, total, squares, cross, counts = sums
        rollouts = sum(count * tasks for count, _, tasks, *_ in found)
        histogram = {(count, passed): tasks for count, passed, tasks, *_ in found}
        return Clusters(tasks, rollouts, float(total), float(squares), float(cross), float(counts), histogram)

    def left_over(self, ended: int) -> list[LeftOver]:
        """What is owed of all that was ever asked for, by the run that asked for it; `ended` slots have ended."""
        if (self._one("SELECT sum(asked) FROM task") or 0) <= ended:
            return []
        found: dict[str, LeftOver] = {}
        for run, index, slots in self._rows(_LEFT_OVER):
            _, before, tasks, first = found.get(run, LeftOver(run, 0, 0, ()))
            found[run] = LeftOver(run, before + slots, tasks + 1, first if tasks >= _MOST_NAMED else (*first, index))
        return list(found.values())

    def query(self, query: str, values: Mapping[str, Any]) -> Iterator[Any]:
        """For what another module asks of the tables."""
        return self._rows(query, dict(values))

    def heed(self, stopped: Callable[[], bool]) -> None:
        """From the moment that this says so, whatever is asked ends with an error. It is called from time to time."""
        self._connection.set_progress_handler(stopped, _STEPS)

    def _rows(self, query: str, *values: Any) -> Iterator[Any]:
        try:
            yield from self._connection.execute(query, values[0] if values and isinstance(values[0], dict) else values)
        except sqlite3.Error as error:
            raise fault(self.path, error) from error

    def _one(self, query: str, *values: Any) -> Any:
        found = next(self._rows(query, *values), None)
        return None if found is None else found[0]


def read_index(path: Path) -> Reader | None:
    """Open an index that another process may be writing; nothing is made or changed. None where there is none yet.

    Raises `ConfigError` for what is no index.
    """
    if not path.exists() or not path.stat().st_size:
        return None
    connection = sqlite3.connect(_uri(path), uri=True, isolation_level=None, timeout=30)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        connection.close()
        raise ConfigError(
            f"{path}: not an index: {error}; the next run on this output makes it anew from the rollouts"
        ) from None
    if version == VERSION:
        return Reader(path, connection)
    connection.close()
    if version == 0:
        return None
    raise ConfigError(
        f"{path}: an index of another version of rollmill; the next run on this output makes it anew from the rollouts"
    )


def _uri(path: Path) -> str:
    # Without a log beside it nobody is writing, and a reader needs none of its own.
    written = path.with_name(f"{path.name}-wal").exists()
    return f"{path.absolute().as_uri()}?mode=ro{'' if written else '&immutable=1'}"
