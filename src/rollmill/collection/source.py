"""Where a collection's tasks come from, and which agent plays each of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Protocol

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
    agents: Counter[str]
    """How many tasks each agent has."""
    indices: frozenset[int] = frozenset()
    """The task indices that rows bring with them."""


class Player(Struct, frozen=True):
    """Who plays a row, what kind of task its environment reads, and what it says of it beforehand."""

    agent: str
    task_type: type[Task]
    check: Callable[[Any], None] = lambda _: None


Route = Callable[[AgentRef | None], Player]
"""Who plays a row with this reference. Raises `ConfigError`."""


class RowFile:
    """A JSONL file of rows."""

    def __init__(self, path: Path, route: Route, limit: int | None = None) -> None:
        self.name = str(path)
        self._path, self._route, self._limit = path, route, limit

    def __iter__(self) -> Iterator[Planned]:
        for number, row in itertools.islice(read_rows(self._path), self._limit):
            place = f"{self._path}, line {number}"
            try:
                player = self._route(_agent_ref(row))
                task = parse(row, player.task_type, place)
                player.check(task)
            except ConfigError as error:
                text = str(error)
                raise ConfigError(text if text.startswith(place) else f"{place}: {text}") from None
            yield Planned(player.agent, task)

    def survey(self) -> Survey:
        agents: Counter[str] = Counter()
        indices: set[int] = set()
        for planned in self:
            agents[planned.agent] += 1
            given = planned.task.get("_ng_task_index")
            if given is not None:
                indices.add(given)
        if not agents:
            raise ConfigError(f"{self._path}: there is no task in it")
        return Survey(agents, frozenset(indices))


class Procedure:
    """Tasks that an environment makes itself, as many as are wanted."""

    def __init__(self, agent: str, tasks: Callable[[], Iterable[Task]], limit: int) -> None:
        self.name = f"{agent}'s own procedure"
        self._agent, self._tasks, self._limit = agent, tasks, limit

    def __iter__(self) -> Iterator[Planned]:
        return (Planned(self._agent, task) for task in itertools.islice(self._tasks(), self._limit))

    def survey(self) -> Survey:
        return Survey(Counter({self._agent: self._limit}))


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
