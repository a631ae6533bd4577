"""Play one task from beginning to end: setup, agent, reward, close. What fails becomes part of the record."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol

from msgspec import Struct

from rollmill.agent import Agent
from rollmill.deadline import Watch
from rollmill.environment import Compute, Environment, RewardPart, World, held
from rollmill.errors import ContractError, RolloutError, boundary
from rollmill.model import Conversation, Model
from rollmill.types import (
    Failure,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Reply,
    Reward,
    Rollout,
    Slot,
    Spans,
    Stop,
    Task,
    Timed,
    Trajectory,
    Where,
    number,
)

log = logging.getLogger(__name__)


class Deadlines(Struct, frozen=True, forbid_unknown_fields=True):
    """How long each stage of a rollout may take."""

    setup_s: float = 60.0
    play_s: float = 3600.0
    verify_s: float = 300.0
    close_s: float = 10.0


async def in_thread(part: RewardPart, task: Task, trajectory: Trajectory, snapshot: Any) -> float:
    """Run a reward that computes in a thread. For a notebook: past its deadline the thread itself goes on."""
    try:
        async with asyncio.timeout(part.timeout_s) as deadline:
            return number(part.name, await asyncio.to_thread(part.function, task, trajectory, snapshot))
    except TimeoutError:
        if deadline.expired():
            detail = f"{part.name} computed for longer than {part.timeout_s:g} s"
            raise RolloutError(Failure("verifier", "timeout", detail)) from None
        raise


class Judge(Protocol):
    """Gives a rollout its reward."""

    async def __call__(self, world: Environment[Any], compute: Compute) -> Reward: ...


async def at_once(world: Environment[Any], compute: Compute) -> Reward:
    """The environment's own reward."""
    return await world.score(compute)


SKIPPED = "verification_skipped"
"""The note of a reward that is only a placeholder."""


class Deferred:
    """A placeholder, for rollouts that are verified later."""

    def __init__(self, placeholder: float = 0.0) -> None:
        self._reward = Reward(placeholder, notes={SKIPPED: True})

    async def __call__(self, world: Environment[Any], compute: Compute) -> Reward:
        return self._reward


async def play(
    task: Task,
    environment: World,
    agent: Agent,
    model: Model,
    *,
    slot: Slot | None = None,
    attempt: int = 1,
    compute: Compute = in_thread,
    deadlines: Deadlines = Deadlines(),
    judge: Judge = at_once,
    watch: Watch | None = None,
    spans: Spans | None = None,
) -> Rollout:
    """Play a task once. A rollout that failed is returned with its failure; only a wrong caller raises.

    Whoever plays many at once gives them one `watch`. `spans` hears how long everything took but the model calls: who
    makes those, as `Calls` does, knows how long they waited and how long the model did.
    """
    began = 0.0 if spans is None else perf_counter()
    watch = watch or Watch()
    trajectory = Trajectory(task.prompt)
    trajectory.spans = spans
    stop, reward, failure = Stop.FAILED, None, None
    try:
        with boundary("environment"):
            world = environment(task)
        world.trajectory = trajectory
        try:
            with Stage("environment", "setup", deadlines.setup_s, trajectory, watch):
                await (world.setup() if spans is None else held(spans, "setup", world.setup()))
            trajectory.asked = task = _offer_tools(task, world)
            with Stage("agent", "play", deadlines.play_s, trajectory, watch):
                stop = await agent.play(task, world, _Metered(model, trajectory), trajectory)
            with Stage("verifier", "verify", deadlines.verify_s, trajectory, watch):
                reward = await judge(world, compute)
        finally:
            await close_world(world, deadlines.close_s, watch)
    except RolloutError as error:
        stop, failure = Stop.FAILED, error.failure
    if spans is not None:
        spans.add("rollout", perf_counter() - began)
    return Rollout(
        slot=slot or Slot(type(agent).__name__, task.identity),
        task=trajectory.asked or task,
        response=trajectory.response(),
        stop=stop,
        model=model.name,
        reward=reward,
        failure=failure,
        turns=trajectory.turns,
        tool_calls=trajectory.tool_calls,
        attempt=attempt,
        # Microseconds: what is finer is noise, and takes room in every row.
        seconds={stage: round(spent, 6) for stage, spent in trajectory.seconds.items()},
    )


async def verify_again(
    rollout: Rollout, environment: World, *, compute: Compute = in_thread, deadlines: Deadlines = Deadlines()
) -> Reward:
    """The reward of a stored rollout, by the way its environment declares. Raises `RolloutError` where it fails."""
    with boundary("environment"):
        world = environment(rollout.task)
    if world.verification == "unsupported":
        raise ContractError(f"{type(world).__name__} declares verification = unsupported: play the task again instead")
    trajectory, watch = Trajectory(rollout.task.prompt), Watch()
    world.trajectory = trajectory
    try:
        with Stage("environment", "setup", deadlines.setup_s, trajectory, watch):
            await world.setup()
        if world.verification == "replay":
            with Stage("tool", "replay", deadlines.play_s, trajectory, watch):
                await _replay(world, rollout.response.output)
        trajectory.restore(rollout)
        with Stage("verifier", "verify", deadlines.verify_s, trajectory, watch):
            return await world.score(compute)
    finally:
        await close_world(world, deadlines.close_s, watch)


async def _replay(world: Environment[Any], items: Sequence[Item]) -> None:
    """Bring a fresh world to where the stored rollout left it; it must answer as it did then."""
    # A queue for each call id: a careless model uses one id twice.
    stored: defaultdict[str, deque[str]] = defaultdict(deque)
    for item in items:
        if isinstance(item, FunctionCallOutput):
            stored[item.call_id].append(item.text)
    for item in items:
        # The trajectory grows as it did then: a tool may look back at it.
        world.trajectory.items.append(item)
        if isinstance(item, FunctionCall) and stored[item.call_id]:
            then, now = stored[item.call_id].popleft(), (await world.call(item)).text
            if now != then:
                detail = f"{item.name}({item.arguments}) answered {then!r} when it was played, and now {now!r}"
                raise RolloutError(Failure("verifier", "replay_differs", detail))


class _Metered:
    """A model whose time is counted as the rollout's."""

    def __init__(self, model: Model, trajectory: Trajectory) -> None:
        self.name = model.name
        self._model, self._trajectory = model, trajectory

    async def reply(self, conversation: Conversation) -> Reply:
        with Timed(self._trajectory.seconds, "model"), boundary("model"):
            return await self._model.reply(conversation)


def _offer_tools(task: Task, world: Environment[Any]) -> Task:
    """A row that names no tools is asked with the environment's, and the record says so."""
    offered = world.offered_tools()
    return task if offered is None or "tools" in task.params else task.with_params({"tools": offered})


class Stage:
    """A stage of a rollout: addressed, timed and bounded."""

    __slots__ = ("_began", "_deadline", "_name", "_seconds", "_spans", "_spent", "_where")

    def __init__(self, where: Where, name: str, seconds: float, trajectory: Trajectory, watch: Watch) -> None:
        self._where: Where = where
        self._name, self._seconds = name, seconds
        self._spent, self._spans = trajectory.seconds, trajectory.spans
        self._deadline = watch.within(seconds)

    def __enter__(self) -> None:
        self._began = perf_counter()
        self._deadline.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        spent = perf_counter() - self._began
        self._spent[self._name] = self._spent.get(self._name, 0.0) + spent
        if self._spans is not None:
            self._spans.add(self._name, spent)
        try:
            self._deadline.__exit__(kind, error, trace)
        except TimeoutError:
            detail = f"{self._name} took longer than {self._seconds:g} s"
            raise RolloutError(Failure(self._where, "timeout", detail, retryable=True)) from None
        if error is not None:
            boundary(self._where).__exit__(kind, error, trace)


async def close_world(world: Environment[Any], seconds: float, watch: Watch) -> None:
    if type(world).close is Environment.close:
        return
    # The reward stands or falls before this; a world that does not close is the author's to hear of, not the rollout's.
    try:
        with watch.within(seconds):
            await world.close()
    except Exception as error:  # noqa: BLE001
        log.warning("close failed: environment=%s error=%r", type(world).__name__, error)
