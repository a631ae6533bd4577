"""Where a collection's tasks come from, and which agent plays each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct

from rollmill.errors import ConfigError
from rollmill.taskset import parse, read_rows
from rollmill.types import AgentRef, Task


class Planned(Struct, frozen=True):
    """A task and the agent that plays it."""

    agent: str
    task: Task


class Source(Protocol):
    """A stream of planned tasks that can be read again."""

    name: str

    def __iter__(self) -> Iterator[Planned]: ...

    def survey(self) -> Survey:
        """Read it through once, before anything is played: a bad row is found now, not in an hour."""
        ...


class Survey(Struct, frozen=True):
    tasks: int
    agents: frozenset[str]


Route = Callable[[AgentRef | None], tuple[str, type[Task]]]
"""Who plays a row, and what kind of task its environment reads. Raises `ConfigError`."""


class RowFile:
    """A JSONL file of rows."""

    def __init__(self, path: Path, route: Route, limit: int | None = None) -> None:
        self.name = str(path)
        self._path, self._route, self._limit = path, route, limit

    def __iter__(self) -> Iterator[Planned]:
        for number, row in itertools.islice(read_rows(self._path), self._limit):
            place = f"{self._path}, line {number}"
            try:
                agent, kind = self._route(_agent_ref(row))
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None
            yield Planned(agent, parse(row, kind, place))

    def survey(self) -> Survey:
        count, agents = _count(self)
        if count == 0:
            raise ConfigError(f"{self._path}: there is no task in it")
        return Survey(count, agents)


class Procedure:
    """Tasks that an environment makes itself, as many as are wanted."""

    def __init__(self, agent: str, tasks: Callable[[], Iterable[Task]], limit: int) -> None:
        self.name = f"{agent}'s own procedure"
        self._agent, self._tasks, self._limit = agent, tasks, limit

    def __iter__(self) -> Iterator[Planned]:
        return (Planned(self._agent, task) for task in itertools.islice(self._tasks(), self._limit))

    def survey(self) -> Survey:
        return Survey(self._limit, frozenset({self._agent}))


class _Head(Struct):
    agent_ref: AgentRef | None = None
    task_index: Annotated[int, Meta(ge=0)] | None = msgspec.field(name="_ng_task_index", default=None)


_head = msgspec.json.Decoder(_Head)


def _agent_ref(row: bytes) -> AgentRef | None:
    """Who a row asks for. What else a collection reads of it is checked here too."""
    try:
        return _head.decode(row).agent_ref
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The row is wrong as a whole; parsing it says how.
        return None


def _count(planned: Iterable[Planned]) -> tuple[int, frozenset[str]]:
    count, agents = 0, set()
    for one in planned:
        count += 1
        agents.add(one.agent)
    return count, frozenset(agents)
