"""Where a collection's tasks come from, and which agent plays each of them."""

from __future__ import annotations

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from rollmill.collection.stretch import STRETCH, Cutter, Planned, Row, Stretch
from rollmill.errors import ConfigError
from rollmill.taskset import is_plain, parse, read_rows
from rollmill.types import AgentRef, Task

_READ_THROUGH = 16 * 2**20
_FIRST_ROWS = 1000
_GIVEN_AT_ONCE = 16


class Survey(Struct, frozen=True):
    agents: Counter[str]
    """The agents that play its rows; how many each, where `tasks` is known."""
    tasks: int | None
    """How many rows there are, if that was worth finding out."""

    def slots(self, repeats: Callable[[str], int]) -> int | None:
        """How many there will be, where that is known."""
        if self.tasks is None:
            return None
        return sum(count * repeats(agent) for agent, count in self.agents.items())


class Source(Protocol):
    """A stream of rows."""

    name: str

    def files(self) -> list[Path]:
        """What it is read from."""
        ...

    def stretches(self) -> Iterator[Stretch]: ...

    def survey(self, *, skip_bad: bool = False) -> Survey:
        """Look at it before anything is played: a bad row is found now, not in an hour, unless it is a large file."""
        ...

    def count(self) -> int | None:
        """How many rows it has, counted without parsing them; for another thread. None where that cannot be known."""
        ...


class Growing(Source, Protocol):
    """A source that may have more rows later: a stretch without a row says that for now there are no more."""

    async def arrival(self) -> None:
        """Returns when it is worth looking again."""
        ...

    def finish(self) -> None:
        """What is there is all of it."""
        ...


class Player(Struct, frozen=True):
    """Who plays a row, what kind of task its environment reads, and what it says of it beforehand."""

    agent: str
    task_type: type[Task]
    check: Callable[[Any], None] = lambda _: None


Route = Callable[[AgentRef | None], Player]
"""Who plays a row with this reference. Raises `ConfigError`."""


class Prompter(Protocol):
    """Makes what the model is asked from the fields of a row."""

    @property
    def path(self) -> Path:
        """What it was read from."""
        ...

    @property
    def hash(self) -> bytes:
        """Another one makes other tasks of the same rows."""
        ...

    def render(self, content: bytes, place: str) -> bytes:
        """The row with its prompt. Raises `ConfigError` that begins with `place`."""
        ...


class Reader(Struct, frozen=True):
    """What makes a task of a row."""

    route: Route
    prompter: Prompter | None = None

    @property
    def salt(self) -> bytes:
        """Another one makes other tasks of the same rows."""
        return self.prompter.hash if self.prompter else b""

    @property
    def files(self) -> list[Path]:
        return [self.prompter.path] if self.prompter else []

    def planned(self, path: str, numbered: Row) -> Planned:
        """Raises `ConfigError` that names the file and the line."""
        number, row = numbered
        place = f"{path}, line {number}"
        try:
            head = _read_head(row)
            player = self.route(head.agent_ref)
            if self.prompter is not None:
                row = self.prompter.render(row, place)
            task = parse(row, player.task_type, place)
            player.check(task)
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(place) else f"{place}: {text}") from None
        return Planned(player.agent, task, head.task_index, head.rollout_index)


class RowFile:
    """A JSONL file of rows: plain, `.gz`, `.zst`, or a stream such as standard input."""

    def __init__(self, path: Path, route: Route, limit: int | None = None, *, prompter: Prompter | None = None) -> None:
        self.name = str(path)
        self._path, self._limit = path, limit
        self._reader = Reader(route, prompter)

    def __iter__(self) -> Iterator[Planned]:
        for stretch in self.stretches():
            for place in range(len(stretch)):
                yield stretch[place]

    def files(self) -> list[Path]:
        return [self._path, *self._reader.files]

    def stretches(self) -> Iterator[Stretch]:
        salt = self._reader.salt if self._again else None
        cutter = Cutter(self.name, functools.partial(self._reader.planned, self.name), salt=salt)
        for row in itertools.islice(read_rows(self._path), self._limit):
            if (stretch := cutter.add(row)) is not None:
                yield stretch
        if (last := cutter.rest()) is not None:
            yield last

    def survey(self, *, skip_bad: bool = False) -> Survey:
        if not self._again:
            return Survey(Counter(), None)
        small = self._path.stat().st_size <= _READ_THROUGH
        rows = self._good() if skip_bad else iter(self)
        agents = Counter(planned.agent for planned in itertools.islice(rows, None if small else _FIRST_ROWS))
        if not agents:
            raise ConfigError(f"{self._path}: there is no task in it")
        return Survey(agents, agents.total() if small else None)

    def count(self) -> int | None:
        if not (self._again and is_plain(self._path)):
            return None
        with self._path.open("rb", buffering=0) as file:
            count, last = 0, b"\n"
            while chunk := file.read(1 << 20):
                count, last = count + chunk.count(b"\n"), chunk[-1:]
        count += last != b"\n"
        return min(count, self._limit) if self._limit else count

    def _good(self) -> Iterator[Planned]:
        for stretch in self.stretches():
            for place in range(len(stretch)):
                with suppress(ConfigError):
                    yield stretch[place]

    @property
    def _again(self) -> bool:
        """Whether it can be read more than once."""
        return self._path.is_file()


class Procedure:
    """Tasks that an environment makes itself, as many as are wanted."""

    def __init__(self, agent: str, tasks: Callable[[], Iterable[Task]], limit: int) -> None:
        self.name = f"{agent}'s own procedure"
        self._agent, self._tasks, self._limit = agent, tasks, limit

    def files(self) -> list[Path]:
        return []

    def stretches(self) -> Iterator[Stretch]:
        tasks = itertools.islice(self._tasks(), self._limit)
        for number, some in enumerate(_batched(tasks, STRETCH)):
            yield Stretch(self.name, number, some, lambda task: Planned(self._agent, task))

    def survey(self, *, skip_bad: bool = False) -> Survey:
        return Survey(Counter({self._agent: self._limit}), self._limit)

    def count(self) -> int | None:
        return self._limit


class Given:
    """Tasks that the caller gives, all for one agent."""

    def __init__(self, agent: str, tasks: Iterable[Task]) -> None:
        self.name = "the given tasks"
        self._agent, self._tasks = agent, tasks

    def files(self) -> list[Path]:
        return []

    def stretches(self) -> Iterator[Stretch]:
        for number, some in enumerate(_batched(iter(self._tasks), _GIVEN_AT_ONCE)):
            yield Stretch(self.name, number, some, lambda task: Planned(self._agent, task))

    def survey(self, *, skip_bad: bool = False) -> Survey:
        return Survey(Counter({self._agent: 0}), None)

    def count(self) -> int | None:
        return None


class Several:
    """Several sources, taken in turns: none waits for another's end."""

    def __init__(self, sources: Sequence[Source], limit: int | None = None) -> None:
        self.name = ", ".join(source.name for source in sources)
        self._sources, self._limit = sources, limit

    def files(self) -> list[Path]:
        return list(dict.fromkeys(path for source in self._sources for path in source.files()))

    def stretches(self) -> Iterator[Stretch]:
        running = [source.stretches() for source in self._sources]
        left = sys.maxsize if self._limit is None else self._limit
        while running and left > 0:
            for one in list(running):
                stretch = next(one, None)
                if stretch is None:
                    running.remove(one)
                elif len(stretch) > left:
                    yield stretch.first(left)
                    return
                else:
                    left -= len(stretch)
                    yield stretch

    def survey(self, *, skip_bad: bool = False) -> Survey:
        surveys = [source.survey(skip_bad=skip_bad) for source in self._sources]
        counts = [survey.tasks for survey in surveys]
        agents = sum((survey.agents for survey in surveys), Counter[str]())
        return Survey(agents, None if self._limit or None in counts else sum(count or 0 for count in counts))

    def count(self) -> int | None:
        counts = [source.count() for source in self._sources]
        if None in counts:
            return None
        whole = sum(count or 0 for count in counts)
        return whole if self._limit is None else min(whole, self._limit)


def _batched(tasks: Iterator[Task], size: int) -> Iterator[list[Task]]:
    while some := list(itertools.islice(tasks, size)):
        yield some


class _Head(Struct):
    agent_ref: AgentRef | None = None
    task_index: Annotated[int, Meta(ge=0)] | None = msgspec.field(name="_ng_task_index", default=None)
    rollout_index: Annotated[int, Meta(ge=0)] | None = msgspec.field(name="_ng_rollout_index", default=None)


_head = msgspec.json.Decoder(_Head)


def _read_head(row: bytes) -> _Head:
    """Who a row asks for, and the indices that it brings."""
    try:
        return _head.decode(row)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The row is wrong as a whole; parsing it says how.
        return _Head()
