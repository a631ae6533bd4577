"""An environment: the world of one task. Its tools, its user, its reward; one object lives for one rollout."""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias

from msgspec import Raw

from rollmill.errors import ContractError, ToolError, boundary
from rollmill.model import Model
from rollmill.tools import Tool, is_tool, output_text
from rollmill.types import (
    FunctionCall,
    FunctionCallOutput,
    Response,
    Reward,
    Spans,
    T,
    Task,
    Trajectory,
    encode,
    number,
)

Verification: TypeAlias = Literal["stateless", "replay", "unsupported"]


class Compute(Protocol):
    """Runs a reward that computes, away from the event loop: see `verification.pool`."""

    async def __call__(self, part: RewardPart, task: Task, trajectory: Trajectory, snapshot: Any) -> float: ...


class RewardPart:
    """One objective of an environment: what it weighs, and how it is computed."""

    def __init__(self, function: Callable[..., Any], weight: float, cpu: bool, timeout_s: float) -> None:
        self.function, self.weight, self.cpu, self.timeout_s = function, weight, cpu, timeout_s
        self.name = function.__name__
        wanted = 3 if cpu else 1
        if len(inspect.signature(function).parameters) != wanted:
            form = "(task, trajectory, snapshot)" if cpu else "(self)"
            raise ContractError(f"reward {function.__qualname__}: a reward {'with cpu=True ' * cpu}takes {form}")

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def of(self, owner: type) -> RewardPart:
        """The same objective of a class that inherited it: a process finds it by that class, which knows its tasks."""
        part = RewardPart(self.function, self.weight, self.cpu, self.timeout_s)
        part.__set_name__(owner, self.name)
        return part

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return self.function if self.cpu else self.function.__get__(instance, owner)


@typing.overload
def reward(function: Callable[..., Any], /) -> RewardPart: ...
@typing.overload
def reward(
    *, weight: float = 1.0, cpu: bool = False, timeout_s: float = 10.0
) -> Callable[[Callable[..., Any]], RewardPart]: ...
def reward(
    function: Callable[..., Any] | None = None, /, *, weight: float = 1.0, cpu: bool = False, timeout_s: float = 10.0
) -> Any:
    """Make a method one part of the reward: `weight` times the number or truth that it returns.

    Weight 0 records a metric. With `cpu=True` the function gets (task, trajectory, snapshot) in a process of its own,
    never the live object, and is killed after `timeout_s`.
    """
    if function is None:
        return lambda function: RewardPart(function, weight, cpu, timeout_s)
    return RewardPart(function, weight, cpu, timeout_s)


class Environment(Generic[T]):
    """The world of one task. Subclass it: state is plain attributes, `@tool` methods act, `@reward` methods judge.

    Instead of `@reward` methods it may have one `verify(self, task, response)`, sync or async, that returns a number,
    a `Reward`, or a dict with `reward` and metrics.
    """

    domain: ClassVar[str] = "other"
    """What it trains: math, coding, agent, knowledge, instruction_following, …"""
    verification: ClassVar[Verification] = "unsupported"
    """How a stored rollout can be verified again: from the row alone, by replaying its tool calls, or not at all."""
    version: ClassVar[str] = "1"
    """Raise it when rewards change: rollouts of two versions are never mixed silently."""

    task_type: ClassVar[type[Task]] = Task
    tools: ClassVar[Mapping[str, Tool]] = {}
    tools_json: ClassVar[Raw] = Raw(b"[]")
    rewards: ClassVar[Mapping[str, RewardPart]] = {}

    def __init__(
        self,
        task: T,
        *,
        config: Mapping[str, Any] | None = None,
        models: Mapping[str, Model] | None = None,
        shared: Any = None,
    ) -> None:
        self.task = task
        self.config: Mapping[str, Any] = config or {}
        self.models: Mapping[str, Model] = models or {}
        self.shared_value = shared
        self.trajectory = Trajectory(task.prompt)
        self.ended = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in getattr(cls, "__orig_bases__", ()):
            kinds = [kind for kind in typing.get_args(base) if isinstance(kind, type) and issubclass(kind, Task)]
            if kinds:
                cls.task_type = kinds[0]
        members = {name: member for kind in reversed(cls.__mro__) for name, member in vars(kind).items()}
        cls.tools = {name: Tool(member) for name, member in members.items() if is_tool(member)}
        cls.tools_json = Raw(encode([tool.schema for tool in cls.tools.values()]))
        cls.rewards = {name: member.of(cls) for name, member in members.items() if isinstance(member, RewardPart)}
        if cls.rewards and cls.verify is not Environment.verify:
            raise ContractError(f"{cls.__name__}: have @reward methods or verify(), not both")

    # What an author may write.

    @classmethod
    @asynccontextmanager
    async def shared(cls, config: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Something heavy that all rollouts of a process use, entered once; they find it as `self.shared_value`."""
        yield None

    @classmethod
    def tasks(cls, config: Mapping[str, Any], seed: int) -> Iterator[T]:
        """Tasks made by a procedure, where the environment has one; the stream may have no end."""
        raise NotImplementedError

    @classmethod
    def makes_tasks(cls) -> bool:
        return "tasks" in {name for kind in cls.__mro__ if kind is not Environment for name in vars(kind)}

    @classmethod
    def check_task(cls, task: T, config: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for a task that cannot be played. Called for every task before the first is played."""

    async def setup(self) -> None:
        """Build the world. What it opens, `close` closes."""

    async def close(self) -> None:
        """Always called, however the rollout ended."""

    async def user(self) -> str | None:
        """The user's next words after the assistant has spoken; None ends the rollout."""
        return None

    def snapshot(self) -> Any:
        """What a reward that computes may know of the world: JSON."""
        return None

    def verify(self, task: T, response: Response) -> Any:
        """The whole reward in one method."""
        raise ContractError(f"{type(self).__name__} judges nothing: give it @reward methods or verify()")

    # What an agent, a runner or a service calls.

    def offered_tools(self) -> Raw | None:
        """What a model is told of the tools, where its row does not say it; asked when the world is set up."""
        return self.tools_json if self.tools else None

    async def call(self, call: FunctionCall) -> FunctionCallOutput:
        """Play one tool call. What the model did wrong is a message to it; what the tool did wrong is a failure.

        The output of a call that did not reach its end has the status `incomplete`.
        """
        with self.trajectory.timed("tools", call.name), boundary("tool"):
            try:
                return FunctionCallOutput(call_id=call.call_id, output=await self._call(call))
            except ToolError as error:
                output = encode({"error": str(error)}).decode()
                return FunctionCallOutput(call_id=call.call_id, output=output, status="incomplete")

    async def _call(self, call: FunctionCall) -> str:
        tool = self.tools.get(call.name)
        if tool is None:
            raise ToolError(f"Unknown tool: {call.name}. The tools are: {', '.join(self.tools) or 'none'}")
        arguments = tool.read(call.arguments)
        if self.trajectory.spans is None:
            return output_text(await _settled(tool.method(self, **arguments)))
        working = _called(tool.method, self, **arguments)
        return output_text(await held(self.trajectory.spans, f"tool {call.name}", working))

    async def score(self, compute: Compute) -> Reward:
        """The reward of what happened."""
        if not self.rewards:
            return _reward(await self._verified(self.trajectory.response()))
        spans = self.trajectory.spans
        parts: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for name, part in self.rewards.items():
            began = 0.0 if spans is None else perf_counter()
            try:
                if part.cpu:
                    value = await compute(part, self.task, self.trajectory, self.snapshot())
                elif spans is None:
                    value = await _settled(part.function(self))
                else:
                    value = await held(spans, f"verify {name}", _called(part.function, self))
            finally:
                if spans is not None:
                    spans.add("verify", perf_counter() - began, name)
            (parts if part.weight else metrics)[name] = number(name, value) * (part.weight or 1)
        return Reward(math.fsum(parts.values()), parts, metrics)

    async def _verified(self, response: Response) -> Any:
        if self.trajectory.spans is None:
            return await _settled(self.verify(self.task, response))
        return await held(self.trajectory.spans, "verify", _called(self.verify, self.task, response))


World: TypeAlias = Callable[[Any], Environment[Any]]
"""Makes the environment of a task: an Environment class, or one with its configuration bound."""


@asynccontextmanager
async def opened(
    world: World | type[Environment[Any]],
    config: Mapping[str, Any] | None = None,
    models: Mapping[str, Model] | None = None,
) -> AsyncIterator[World]:
    """An Environment class with its configuration, its models and its `shared()` bound; any other World as it is."""
    if not (isinstance(world, type) and issubclass(world, Environment)):
        yield world  # type: ignore[misc]
        return
    async with world.shared(config or {}) as shared:
        yield functools.partial(world, config=config, models=models, shared=shared)


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await _settled(function(*arguments, **named))


async def held(spans: Spans, what: str, working: Coroutine[Any, Any, Any]) -> Any:
    """Await it, and tell how long it held the event loop: for so long nothing else went on."""
    steps = _Steps(working)
    try:
        return await steps
    finally:
        spans.add("held", steps.seconds, what)


class _Steps:
    """Awaits a coroutine step by step, and counts the time of its steps without what lies between them."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.seconds = 0.0

    def __await__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        began = perf_counter()
        try:
            return step(*given)
        finally:
            self.seconds += perf_counter() - began


def _reward(value: Any) -> Reward:
    """What `verify` returned, as a `Reward`."""
    if isinstance(value, Reward):
        return value
    if not isinstance(value, Mapping):
        return Reward(number("verify", value))
    if "reward" not in value:
        raise TypeError(f"verify returned a dict without `reward`: its keys are {', '.join(value)}")
    rest = {key: item for key, item in value.items() if key not in ("reward", "reward_components")}
    metrics = {key: item for key, item in rest.items() if hasattr(item, "__float__")}
    notes = {key: item for key, item in rest.items() if key not in metrics}
    return Reward(value["reward"], value.get("reward_components", {}), metrics, notes)
