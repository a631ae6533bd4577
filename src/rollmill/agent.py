"""An agent plays a task with a model in an environment, and appends what happens to the trajectory it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from rollmill.environment import Environment
from rollmill.errors import boundary
from rollmill.model import Conversation, Model
from rollmill.types import FunctionCall, FunctionCallOutput, Message, Reply, Stop, Task, Trajectory


class Agent(Protocol):
    """Plays. One method; what it appended before it failed is kept."""

    async def play(self, task: Task, environment: Environment[Any], model: Model, trajectory: Trajectory) -> Stop:
        """Play to an end and say which."""
        ...


class ToolAgent:
    """The loop: ask the model, play the tools it called, ask again, until it answers without a call."""

    def __init__(
        self,
        *,
        max_turns: int = 100,
        max_tool_calls: int | None = None,
        max_tokens: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.max_turns = max_turns
        self.max_tool_calls = max_tool_calls
        self.max_tokens = max_tokens
        self.deadline_s = deadline_s

    async def play(self, task: Task, environment: Environment[Any], model: Model, trajectory: Trajectory) -> Stop:
        if self.deadline_s is None:
            return await self._loop(task, environment, model, trajectory)
        try:
            async with asyncio.timeout(self.deadline_s) as deadline:
                return await self._loop(task, environment, model, trajectory)
        except TimeoutError:
            if deadline.expired():
                return Stop.DEADLINE
            raise

    async def _loop(self, task: Task, environment: Environment[Any], model: Model, trajectory: Trajectory) -> Stop:
        while True:
            if trajectory.turns >= self.max_turns:
                return Stop.MAX_TURNS
            if self.max_tokens is not None and trajectory.usage.output_tokens >= self.max_tokens:
                return Stop.MAX_TOKENS
            said = (*trajectory.prompt, *trajectory.items)
            reply = await model.reply(Conversation(said, task.params, trajectory.id, trajectory.turns))
            trajectory.add_reply(reply)
            if reply.stop is not None:
                return reply.stop
            calls = reply.calls
            if calls:
                if self.max_tool_calls is not None and trajectory.tool_calls + len(calls) > self.max_tool_calls:
                    return Stop.MAX_TOOL_CALLS
                await _play(calls, environment, trajectory)
            elif _spoke(reply):
                with boundary("environment"):
                    words = await environment.user()
                if words is None:
                    return Stop.DONE
                trajectory.add_user(words)
            if environment.ended:
                return Stop.ENVIRONMENT


def _spoke(reply: Reply) -> bool:
    # Reasoning alone is no answer: the model is asked again. A reply of nothing at all is one, and an empty one.
    return not reply.items or any(isinstance(item, Message) for item in reply.items)


async def _play(calls: Sequence[FunctionCall], environment: Environment[Any], trajectory: Trajectory) -> None:
    """Parallel calls, played concurrently, answered in the order of the calls."""
    if len(calls) == 1:
        trajectory.add_output(await environment.call(calls[0]))
        return
    tasks: list[asyncio.Task[FunctionCallOutput]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(environment.call(call)) for call in calls]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        # A call that was answered has changed the world, also where a deadline or another call ended them all.
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                trajectory.add_output(task.result())
