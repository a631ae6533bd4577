"""What the index says of each agent's rollouts: the values of every number, and the slots in the order of their tasks.

SQLite does the sorting, on the disk where it is much; here nothing is held for each rollout. A rollout whose reward was
deferred is in none of the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rollmill.store.lines import Place
from rollmill.store.reader import Reader
from rollmill.types import decode

_COLUMNS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "total_tokens": "input_tokens + output_tokens",
    "turns": "turns",
    "tool_calls": "tool_calls",
}
"""What every rollout has, unless its environment has a metric of that name."""
_NAMED = ("parts", "metrics")
_REWARDED = "rollout.reward IS NOT NULL"
# The rollouts of one agent, or of the only one: then their tasks need not be looked up.
_OF_AGENT = "(:agent IS NULL OR rollout.task IN (SELECT id FROM task WHERE agent = :agent))"


class Agent(NamedTuple):
    name: str
    id: int | None
    """None where there is no other one."""


class Values(NamedTuple):
    """Those of one name."""

    how_many: int
    histogram: Iterator[tuple[float, int]]
    """In order, each with how often it is there."""


class Ended(NamedTuple):
    """A slot that has ended. Without a reward and without a failure its verification was deferred."""

    task_index: int
    rollout_index: int
    task: int
    occurrence: int
    place: Place
    failed: bool
    reward: float | None
    numbers: dict[str, float]
    """Everything that is counted of it, the reward too; empty without a reward."""


class Aggregate:
    """Answers from an index."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def agents(self) -> list[Agent]:
        """Those who have played anything, by name."""
        query = (
            "SELECT name, id FROM agent WHERE EXISTS "
            "(SELECT 1 FROM task JOIN rollout ON rollout.task_index = task.task_index AND rollout.task = task.id "
            "WHERE task.agent = agent.id) ORDER BY name"
        )
        found = [Agent(*row) for row in self._reader.query(query, {})]
        return [Agent(found[0].name, None)] if len(found) == 1 else found

    def tasks(self, agent: Agent) -> int:
        """How many task indices have slots of the agent that ended."""
        query = f"SELECT count(*) FROM (SELECT DISTINCT task_index FROM rollout WHERE {_OF_AGENT})"  # noqa: S608
        return int(next(self._query(query, agent))[0])

    def slots(self, agent: Agent) -> int:
        query = f"SELECT count(*) FROM rollout WHERE {_OF_AGENT}"  # noqa: S608
        return int(next(self._query(query, agent))[0])

    def values(self, agent: Agent) -> Iterator[tuple[str, Values]]:
        """All values of every number of the agent's rollouts, the reward first."""
        # An environment cannot call a metric `reward` and be heard: the row has the reward there.
        named = [name for name in self._names(agent) if name != "reward"]
        queries = {"reward": _column("reward")} | dict.fromkeys(named, _named_values())
        queries |= {name: _column(column) for name, column in _COLUMNS.items() if name not in queries}
        for name, query in queries.items():
            found = self._values(agent, name, query)
            if found.how_many:
                yield name, found

    def rewards(self, agent: Agent) -> Iterator[tuple[int, float]]:
        """Task index and reward of every rollout with one; those of a task follow each other as they were planned."""
        query = (
            f"SELECT task_index, reward FROM rollout WHERE {_REWARDED} AND {_OF_AGENT} "  # noqa: S608
            "ORDER BY task_index, rollout_index"
        )
        return self._query(query, agent)

    def sizes(self, agent: Agent) -> dict[tuple[int, int], int]:
        """How many tasks have so many rollouts, so many of them with a reward of at least 1."""
        query = (
            "SELECT count, passed, count(*) FROM (SELECT count(*) AS count, sum(reward >= 1) AS passed FROM rollout "  # noqa: S608
            f"WHERE {_REWARDED} AND {_OF_AGENT} GROUP BY task_index) GROUP BY count, passed ORDER BY count, passed"
        )
        return {(count, passed): tasks for count, passed, tasks in self._query(query, agent)}

    def ended(self, agent: Agent) -> Iterator[Ended]:
        """Every slot that has ended, in the order of the tasks."""
        return self._ended(agent, "1")

    def failed(self, agent: Agent) -> Iterator[Ended]:
        """Those that failed for good."""
        return self._ended(agent, "failure IS NOT NULL")

    def _ended(self, agent: Agent, condition: str) -> Iterator[Ended]:
        query = (
            "SELECT task_index, rollout_index, task, occurrence, offset, length, inner, failure IS NOT NULL, reward, "  # noqa: S608
            f"parts, metrics, {', '.join(_COLUMNS.values())} FROM rollout WHERE {condition} AND {_OF_AGENT} "
            "ORDER BY task_index, rollout_index"
        )
        for index, number, task, occurrence, offset, length, inner, failed, reward, *counted in self._query(
            query, agent
        ):
            place = Place(offset, length, inner)
            numbers = {} if reward is None else _numbers_of(reward, *counted)
            yield Ended(index, number, task, occurrence, place, bool(failed), reward, numbers)

    def _names(self, agent: Agent) -> list[str]:
        """The parts and the metrics that the agent's rollouts have."""
        found: dict[str, None] = {}
        for column in _NAMED:
            query = (
                f"SELECT DISTINCT key FROM rollout, json_each(rollout.{column}) "  # noqa: S608
                f"WHERE {_REWARDED} AND {_OF_AGENT} ORDER BY key"
            )
            found |= {name: None for (name,) in self._query(query, agent)}
        return list(found)

    def _values(self, agent: Agent, name: str, query: str) -> Values:
        how_many = next(self._query(f"SELECT count(value) FROM ({query})", agent, name))[0]  # noqa: S608
        histogram = f"SELECT value, count(*) FROM ({query}) WHERE value IS NOT NULL GROUP BY value ORDER BY value"  # noqa: S608
        return Values(how_many, self._query(histogram, agent, name))

    def _query(self, query: str, agent: Agent, name: str = "") -> Iterator[Any]:
        return self._reader.query(query, {"agent": agent.id, "name": name})


def _column(column: str) -> str:
    return f"SELECT {column} AS value FROM rollout WHERE {_REWARDED} AND {_OF_AGENT}"  # noqa: S608


def _named_values() -> str:
    """The metric or the part of a name; where a rollout has both, its row shows the metric."""
    one = "SELECT json.value FROM json_each(rollout.{}) AS json WHERE json.key = :name"
    value = f"coalesce(({one.format('metrics')}), ({one.format('parts')}))"
    return f"SELECT {value} AS value FROM rollout WHERE {_REWARDED} AND {_OF_AGENT}"  # noqa: S608


def _numbers_of(reward: float, parts: str | None, metrics: str | None, *counts: int) -> dict[str, float]:
    numbers: dict[str, float] = dict(zip(_COLUMNS, counts, strict=True))
    for named in (parts, metrics):
        numbers |= decode(named, type=dict[str, float]) if named else {}
    return numbers | {"reward": reward}
