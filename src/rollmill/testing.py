"""The contracts as a test kit: an author calls one function, and hears which promise is not kept.

Each check raises `ContractError`, or `AssertionError` where it is an answer of the author's own that is judged wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rollmill.agent import Agent, ToolAgent
from rollmill.environment import Environment, World, opened
from rollmill.errors import ContractError, ModelError, RolloutError
from rollmill.model import Conversation, Line, Model, Scripted
from rollmill.rollout import play, verify_again
from rollmill.tools import tool
from rollmill.types import (
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reply,
    Reward,
    Rollout,
    Stop,
    T,
    Task,
    Usage,
    call,
    decode,
    encode,
    read_item,
    read_task,
    user,
)

Script = Sequence[Line]
"""What a scripted model says, turn by turn."""

_AT_ONCE = 8


async def check_environment(
    kind: type[Environment[T]],
    tasks: Iterable[T],
    *,
    gold: Callable[[T], Script] | None = None,
    wrong: Callable[[T], Iterable[Script]] | None = None,
    full: float = 1.0,
    config: Mapping[str, Any] | None = None,
    models: Mapping[str, Model] | None = None,
) -> None:
    """Does an environment keep its contract on these tasks?

    `gold` gives what a perfect model says to a task: it must earn at least `full`. `wrong` gives scripts that must earn
    less, gaming ones among them.
    """

    checked = 0
    async with opened(kind, config, models) as world:
        for task in tasks:
            checked += 1
            _check_row(task, kind)
            for script in _hostile(kind):
                await _must_survive(world, task, script)
            answer = gold(task) if gold else ["I do not know."]
            await _check_alike(world, task, answer)
            reward = await _check_again(kind, world, task, answer)
            if gold is not None:
                assert reward.value >= full, f"the gold answer earns {reward.value}, not {full}: {_shown(task)}"
            for script in wrong(task) if wrong else ():
                reward = await _check_again(kind, world, task, script)
                said = f"{list(script)!r} on {_shown(task)}"
                assert reward.value < full, f"a wrong answer earns {reward.value}: {said}"
    if not checked:
        raise ContractError(f"{kind.__name__}: there was no task to check it with")


def _check_row(task: Task, kind: type[Environment[Any]]) -> None:
    if not isinstance(task, kind.task_type):
        raise ContractError(f"{kind.__name__} plays {kind.task_type.__name__}, not {type(task).__name__}")
    again = read_task(encode(task.fields), kind.task_type)
    if again.identity != task.identity:
        raise ContractError(f"{kind.__name__}: a task read back from its row is another task: {_shown(task)}")


def _hostile(kind: type[Environment[Any]]) -> Iterable[Script]:
    """What models do to environments: nothing, noise, tools that do not exist, arguments that make no sense."""
    yield [""]
    yield ["\x00 \\boxed{ }}} 🦆 " + "long " * 2000]
    yield [call("no_such_tool"), "done"]
    for name in kind.tools:
        for arguments in ("{}", "not JSON", "[]", '{"no_such_argument": 1}', "null"):
            yield [FunctionCall(name=name, arguments=arguments, call_id="call_1"), "done"]


class _InTurn(Scripted):
    """Lets other rollouts take their turns between its own, as a real model does."""

    async def reply(self, conversation: Conversation) -> Reply:
        await asyncio.sleep(0)
        return await super().reply(conversation)


async def _must_survive(world: World, task: Task, script: Script) -> Rollout:
    rollout = await play(task, world, ToolAgent(), _InTurn(*script))
    if rollout.failure is not None:
        name, said = _name(world, task), _short(list(script))
        raise ContractError(f"{name} fails where it should answer: {rollout.failure.detail}; the model said {said}")
    return rollout


async def _check_alike(world: World, task: Task, script: Script) -> None:
    """The same answers earn the same, also when many worlds live at once."""
    alone = await _must_survive(world, task, script)
    together = await asyncio.gather(*(_must_survive(world, task, script) for _ in range(_AT_ONCE)))
    rewards = {rollout.reward.value for rollout in (alone, *together) if rollout.reward is not None}
    if len(rewards) != 1:
        raise ContractError(
            f"{_name(world, task)}: the same script earned {sorted(rewards)}, alone and with {_AT_ONCE} worlds at "
            "once; state belongs on self, and chance needs a seed from the task"
        )


async def _check_again(kind: type[Environment[Any]], world: World, task: Task, script: Script) -> Reward:
    """The reward of a script; and it stays the same when the stored rollout is verified again."""
    rollout = await _must_survive(world, task, script)
    reward = rollout.reward or Reward(0.0)
    if kind.verification == "unsupported":
        return reward
    try:
        again = await verify_again(_stored(rollout), world)
    except RolloutError as error:
        raise ContractError(
            f"{kind.__name__} declares verification = {kind.verification}, but could not be verified again: {error}"
        ) from error
    if again != reward:
        raise ContractError(
            f"{kind.__name__} declares verification = {kind.verification}, but earns {again.value} when it is verified "
            f"again, and {reward.value} when it is played"
        )
    return reward


def _stored(rollout: Rollout) -> Rollout:
    """A rollout as it comes back from a file: every item read from its JSON."""
    items = tuple(read_item(bytes(item.json)) for item in rollout.response.output)
    return msgspec.structs.replace(rollout, response=msgspec.structs.replace(rollout.response, output=items))


async def check_model(model: Model) -> None:
    """Does a model answer as the contract says: text, usage, items that survive JSON, many at once, cancellation?"""
    question = Conversation((user("Say yes."),), {}, "check-1")
    reply = await model.reply(question)
    _check_reply(model, reply)
    later = Conversation((*question.items, *reply.items, user("And again.")), {}, "check-1", 1)
    _check_reply(model, await model.reply(later))
    for one in await asyncio.gather(*(model.reply(question) for _ in range(_AT_ONCE))):
        _check_reply(model, one)
    task = asyncio.ensure_future(model.reply(question))
    await asyncio.sleep(0)
    task.cancel()
    if not isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError | Reply):
        raise ContractError(f"{model.name} turns cancellation into something else")


def _check_reply(model: Model, reply: Reply) -> None:
    if not reply.items and reply.stop is None:
        raise ContractError(f"{model.name} answered nothing and did not say why (Reply.stop)")
    for item in reply.items:
        again = read_item(bytes(item.json))
        if type(again) is not type(item):
            raise ContractError(f"{model.name}: an item changes when it is read back: {item!r}")
    if reply.items and reply.usage == Usage():
        raise ContractError(f"{model.name} does not count its tokens; Usage.estimate(items) is better than nothing")
    for name, value in reply.fields.items():
        decode(value, type=Any)
        if name in ("output", "usage"):
            raise ContractError(f"{model.name}: `{name}` belongs into the reply itself, not into its fields")


class _Counter(Environment[Task]):
    """A small world for agents: it counts."""

    verification = "replay"

    async def setup(self) -> None:
        self.count = 0

    @tool
    def add(self, number: int) -> int:
        """Add a number to the count."""
        self.count += number
        return self.count

    def verify(self, task: Task, response: Any) -> float:
        return float(self.count == 3 and "3" in response.output_text)


class _Broken:
    """A model that fails at its second turn."""

    name = "broken"

    async def reply(self, conversation: Conversation) -> Reply:
        if conversation.turn or len(conversation.items) > 1:
            raise ModelError("overload", "the second turn fails")
        return Reply((call("add", number=1),), Usage(1, 1))


async def check_agent(agent: Agent) -> None:
    """Does an agent play tools, append what happens as it happens, say how it ended, and let failures pass?"""
    name = type(agent).__name__
    task = Task.of("Add 1, then 2, then say the count.")
    script = Scripted(call("add", "call_1", number=1), call("add", "call_2", number=2), "The count is 3.")
    rollout = await play(task, _Counter, agent, script)
    if rollout.failure is not None:
        raise ContractError(f"{name} failed on two tool calls and an answer: {rollout.failure.detail}")
    if rollout.stop is not Stop.DONE or rollout.reward is None or rollout.reward.value != 1:
        raise ContractError(
            f"{name} ended with {rollout.stop} and {rollout.reward} where two calls and an answer do it"
        )
    kinds = [type(item) for item in rollout.response.output if isinstance(item, _PLAYED)]
    if kinds != [FunctionCall, FunctionCallOutput, FunctionCall, FunctionCallOutput, Message]:
        raise ContractError(f"{name}: the trajectory holds {[kind.__name__ for kind in kinds]}, out of order")
    broken = await play(task, _Counter, agent, _Broken())
    if broken.failure is None or broken.failure.where != "model":
        raise ContractError(f"{name} hides a failing model: {broken.failure}")
    if not any(isinstance(item, FunctionCallOutput) for item in broken.response.output):
        raise ContractError(f"{name} does not append as it plays: what came before a failure is lost")


_PLAYED = (FunctionCall, FunctionCallOutput, Message)


def _name(world: World, task: Task) -> str:
    return type(world(task)).__name__


def _shown(task: Task) -> str:
    return _short({key: decode(value) for key, value in task.fields.items()})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
