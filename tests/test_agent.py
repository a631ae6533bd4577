"""The loop: when it asks again, when it ends, and what stays in the trajectory."""

import asyncio
import json
from typing import Any

import pytest

import rollmill as rm
from rollmill.types import encode, read_item

TASK = rm.Task.of("Begin.")


class Desk(rm.Environment):
    """A world that says what happened to it."""

    async def setup(self) -> None:
        self.rung = 0

    @rm.tool
    def ring(self, times: int = 1) -> int:
        """Ring the bell."""
        self.rung += times
        return self.rung

    @rm.tool
    def leave(self) -> str:
        """End the world."""
        self.ended = True
        return "bye"

    @rm.reward
    def rang(self) -> int:
        return self.rung


class Echo:
    """A model that remembers what it was asked."""

    name = "echo"

    def __init__(self, *script: Any) -> None:
        self.asked: list[rm.Conversation] = []
        self._script = rm.Scripted(*script)

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        self.asked.append(conversation)
        return await self._script.reply(conversation)


async def play(
    *script: Any, world: type[rm.Environment] = Desk, task: rm.Task = TASK, model: Any = None, **limits: Any
) -> rm.Rollout:
    return await rm.play(task, world, rm.ToolAgent(**limits), model or rm.Scripted(*script))


def kinds(rollout: rm.Rollout) -> list[str]:
    return [json.loads(bytes(item.json))["type"] for item in rollout.response.output]


def outputs(rollout: rm.Rollout) -> list[str]:
    return [item.text for item in rollout.response.output if isinstance(item, rm.FunctionCallOutput)]


async def test_it_ends_when_the_model_answers_without_a_call() -> None:
    rollout = await play(rm.call("ring"), rm.call("ring", times=2), "done", "never said")
    assert rollout.stop is rm.Stop.DONE
    assert kinds(rollout) == ["function_call", "function_call_output"] * 2 + ["message"]
    assert (rollout.turns, rollout.tool_calls) == (3, 2)
    assert outputs(rollout) == ["1", "3"]


async def test_words_beside_a_call_do_not_end_it() -> None:
    rollout = await play([rm.assistant("I ring."), rm.call("ring")], "done")
    assert kinds(rollout) == ["message", "function_call", "function_call_output", "message"]


async def test_reasoning_alone_is_asked_again() -> None:
    rollout = await play([rm.Reasoning()], [rm.Reasoning(), rm.assistant("done")])
    assert rollout.stop is rm.Stop.DONE
    assert kinds(rollout) == ["reasoning", "reasoning", "message"]


async def test_a_model_that_only_thinks_ends_at_the_limit() -> None:
    rollout = await play([rm.Reasoning()], max_turns=3)
    assert (rollout.stop, rollout.turns) == (rm.Stop.MAX_TURNS, 3)
    assert rollout.failure is None


async def test_an_item_of_an_unknown_kind_is_no_answer() -> None:
    search = read_item(b'{"type":"web_search_call","id":"ws_1"}')
    rollout = await play(search, "done")
    assert kinds(rollout) == ["web_search_call", "message"]


async def test_a_reply_of_nothing_is_an_empty_answer() -> None:
    rollout = await play(rm.Reply(()))
    assert (rollout.stop, rollout.response.output_text) == (rm.Stop.DONE, "")


@pytest.mark.parametrize("stop", [rm.Stop.LENGTH, rm.Stop.CONTEXT, rm.Stop.CONTENT_FILTER])
async def test_a_reply_that_cannot_be_followed_ends_it_and_is_rewarded(stop: rm.Stop) -> None:
    cut = rm.Reply((rm.assistant("one, tw"), rm.call("ring", "never_played")), stop=stop)
    rollout = await play(rm.call("ring"), cut)
    assert rollout.stop is stop
    assert kinds(rollout) == ["function_call", "function_call_output", "message", "function_call"]
    assert rollout.reward == rm.Reward(1.0, {"rang": 1.0})


# Limits.


async def test_turns_are_limited() -> None:
    rollout = await play(rm.call("ring"), max_turns=2)
    assert (rollout.stop, rollout.turns, rollout.tool_calls) == (rm.Stop.MAX_TURNS, 2, 2)
    assert rollout.reward == rm.Reward(2.0, {"rang": 2.0})


async def test_a_limit_that_is_not_passed_does_not_show() -> None:
    rollout = await play(rm.call("ring"), "done", max_turns=2, max_tool_calls=1, max_tokens=10_000)
    assert rollout.stop is rm.Stop.DONE


async def test_tool_calls_are_limited_and_no_part_of_a_turn_is_played() -> None:
    three = [rm.call("ring", f"c{number}") for number in range(3)]
    rollout = await play(rm.call("ring"), three, max_tool_calls=3)
    assert (rollout.stop, rollout.tool_calls) == (rm.Stop.MAX_TOOL_CALLS, 1)
    assert kinds(rollout) == ["function_call", "function_call_output"] + ["function_call"] * 3
    assert rollout.reward == rm.Reward(1.0, {"rang": 1.0})


async def test_output_tokens_are_limited() -> None:
    ring = rm.Reply((rm.call("ring"),), rm.Usage(1_000, 40))
    rollout = await play(ring, max_tokens=100)
    assert (rollout.stop, rollout.turns) == (rm.Stop.MAX_TOKENS, 3)
    assert rollout.response.usage == rm.Usage(3_000, 120)
    assert rollout.reward is not None


async def test_at_its_own_deadline_what_was_done_is_rewarded() -> None:
    class Slow:
        name = "slow"

        async def reply(self, conversation: rm.Conversation) -> rm.Reply:
            if conversation.turn:
                await asyncio.Event().wait()
            return rm.Reply((rm.call("ring"),), rm.Usage(1, 1))

    rollout = await play(model=Slow(), deadline_s=0.05)
    assert rollout.stop is rm.Stop.DEADLINE
    assert rollout.failure is None
    assert kinds(rollout) == ["function_call", "function_call_output"]
    assert rollout.reward == rm.Reward(1.0, {"rang": 1.0})


async def test_a_timeout_of_somebody_else_is_no_deadline() -> None:
    class Late:
        name = "late"

        async def reply(self, conversation: rm.Conversation) -> rm.Reply:
            raise TimeoutError("no answer in 5 s")

    rollout = await play(model=Late(), deadline_s=60)
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.failure.kind) == ("model", "timeout")


# Parallel calls.


class Meeting(rm.Environment):
    """Tools that wait for one another."""

    async def setup(self) -> None:
        self.both = asyncio.Barrier(2)
        self.second_is_over = asyncio.Event()
        self.cancelled = 0

    @rm.tool
    async def meet(self, name: str) -> str:
        """Wait for the other."""
        async with asyncio.timeout(5):
            await self.both.wait()
        return name

    @rm.tool
    async def first(self) -> str:
        """End after the second."""
        async with asyncio.timeout(5):
            await self.second_is_over.wait()
        return "first"

    @rm.tool
    async def second(self) -> str:
        """Let the first one end."""
        self.second_is_over.set()
        return "second"

    @rm.tool
    async def crash(self) -> str:
        """Break."""
        raise ZeroDivisionError("nothing to divide by")

    @rm.tool
    async def hang(self) -> str:
        """Never answer."""
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        return "never"

    @rm.tool
    async def misplace(self) -> str:
        """Wait for what has been cancelled."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.cancel()
        return await answer

    def verify(self, task: rm.Task, response: rm.Response) -> float:
        return float(self.cancelled)


async def test_parallel_calls_are_played_at_once() -> None:
    rollout = await play([rm.call("meet", "c1", name="a"), rm.call("meet", "c2", name="b")], "done", world=Meeting)
    assert rollout.failure is None, rollout.failure
    assert outputs(rollout) == ["a", "b"]


async def test_outputs_are_in_the_order_of_the_calls() -> None:
    rollout = await play([rm.call("first", "c1"), rm.call("second", "c2")], "done", world=Meeting)
    assert outputs(rollout) == ["first", "second"]
    answered = [item.call_id for item in rollout.response.output if isinstance(item, rm.FunctionCallOutput)]
    assert answered == ["c1", "c2"]


async def test_one_of_several_calls_that_breaks_is_the_rollout_s_failure() -> None:
    rollout = await play([rm.call("hang", "c1"), rm.call("crash", "c2")], "done", world=Meeting)
    assert rollout.reward is None
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.failure.kind) == ("tool", "error")
    assert "ZeroDivisionError: nothing to divide by" in rollout.failure.detail


async def test_what_other_calls_answered_before_one_broke_is_kept() -> None:
    rollout = await play([rm.call("second", "c1"), rm.call("first", "c2"), rm.call("crash", "c3")], world=Meeting)
    assert rollout.failure is not None
    assert "second" in outputs(rollout)


async def test_what_was_answered_before_the_deadline_is_kept() -> None:
    calls = [rm.call("second", "c1"), rm.call("hang", "c2"), rm.call("first", "c3")]
    rollout = await play(calls, world=Meeting, deadline_s=0.05)
    assert (rollout.stop, rollout.tool_calls) == (rm.Stop.DEADLINE, 2)
    assert outputs(rollout) == ["second", "first"]
    assert rollout.reward == rm.Reward(1.0)


@pytest.mark.parametrize("beside", [[], [rm.call("second", "c2")]])
async def test_a_tool_that_waits_for_what_was_cancelled_does_not_cancel_the_rollout(beside: list[rm.Item]) -> None:
    rollout = await play([rm.call("misplace"), *beside], "done", world=Meeting)
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.failure.kind) == ("tool", "error")


# The user, and the world's end.


class Interview(Desk):
    async def setup(self) -> None:
        await super().setup()
        self.questions = ["And then?", "And in the end?"]

    async def user(self) -> str | None:
        return self.questions.pop(0) if self.questions else None


async def test_a_user_answers_until_there_is_nothing_more_to_say() -> None:
    rollout = await play("I came.", rm.call("ring"), "I rang.", "I left.", world=Interview)
    said = [item.text if isinstance(item, rm.Message) else "-" for item in rollout.response.output]
    assert said == ["I came.", "And then?", "-", "-", "I rang.", "And in the end?", "I left."]
    assert rollout.stop is rm.Stop.DONE
    assert rollout.response.output_text == "I left."


async def test_a_world_that_ends_ends_the_rollout() -> None:
    rollout = await play(rm.call("leave"), "never said")
    assert (rollout.stop, rollout.turns) == (rm.Stop.ENVIRONMENT, 1)
    assert outputs(rollout) == ["bye"]


async def test_a_world_may_end_after_the_user_s_last_words() -> None:
    class Farewell(Desk):
        async def user(self) -> str | None:
            self.ended = True
            return "Goodbye."

    rollout = await play("Hello.", "never said", world=Farewell)
    assert rollout.stop is rm.Stop.ENVIRONMENT
    assert [item.text for item in rollout.response.output if isinstance(item, rm.Message)] == ["Hello.", "Goodbye."]


# What the model is asked.


async def test_every_turn_is_asked_in_the_same_way() -> None:
    row = {"responses_create_params": {"input": "Begin.", "temperature": 0.5, "metadata": {"a": "b"}}}
    model = Echo(rm.call("ring"), rm.call("ring"), "done")
    rollout = await play(model=model, task=rm.read_task(encode(row), rm.Task))
    assert len({conversation.id for conversation in model.asked}) == 1
    assert model.asked[0].id
    assert [conversation.turn for conversation in model.asked] == [0, 1, 2]
    assert all(conversation.params is model.asked[0].params for conversation in model.asked)
    params = {name: json.loads(bytes(value)) for name, value in model.asked[0].params.items()}
    assert params == {"temperature": 0.5, "metadata": {"a": "b"}, "tools": json.loads(bytes(Desk.tools_json))}
    assert rollout.stop is rm.Stop.DONE


async def test_rollouts_are_different_conversations() -> None:
    model = Echo("done")
    await play(model=model)
    await play(model=model)
    assert model.asked[0].id != model.asked[1].id


async def test_every_turn_is_asked_with_everything_said_so_far_and_nothing_is_encoded_again() -> None:
    model = Echo(rm.call("ring"), "done")
    rollout = await play(model=model)
    first, second = model.asked
    assert [*first.items] == [rm.user("Begin.")]
    assert len(second.items) == 3
    assert second.items[0] is first.items[0]
    assert all(asked is kept for asked, kept in zip(second.items[1:], rollout.response.output, strict=False))
    assert all(item.json is kept.json for item, kept in zip(second.items[1:], rollout.response.output, strict=False))


async def test_a_failure_keeps_the_turns_before_it() -> None:
    class Broken:
        name = "broken"

        async def reply(self, conversation: rm.Conversation) -> rm.Reply:
            if conversation.turn:
                raise rm.ModelError("overload", "too busy")
            return rm.Reply((rm.call("ring"),), rm.Usage(3, 2))

    rollout = await play(model=Broken())
    assert rollout.failure == rm.Failure("model", "overload", "too busy", retryable=True)
    assert kinds(rollout) == ["function_call", "function_call_output"]
    assert rollout.response.usage == rm.Usage(3, 2)
