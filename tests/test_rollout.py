"""One task from beginning to end: whatever happens, the world is closed and the record says what happened."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import rollmill as rm
from rollmill.rollout import Deferred
from rollmill.types import encode, read_item

TASK = rm.Task.of("Begin.")
GOOD = (rm.call("ring"), "done")


class Desk(rm.Environment):
    """Notes what is done to it, in a list that outlives it."""

    verification = "replay"
    log: list[str]

    async def setup(self) -> None:
        self.log.append("setup")
        self.rung = 0

    async def close(self) -> None:
        self.log.append("close")

    @rm.tool
    def ring(self, times: int = 1) -> int:
        """Ring the bell."""
        self.rung += times
        return self.rung

    @rm.reward
    def rang(self) -> int:
        return self.rung


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    log: list[str] = []
    monkeypatch.setattr(Desk, "log", log, raising=False)
    return log


async def play(world: Any, *script: Any, agent: Any = None, model: Any = None, **options: Any) -> rm.Rollout:
    script = script or GOOD
    return await rm.play(TASK, world, agent or rm.ToolAgent(), model or rm.Scripted(*script), **options)


def broken(error: Exception) -> Callable[..., Any]:
    async def method(*_: object) -> Any:
        raise error

    return method


async def hang(*_: object) -> Any:
    await asyncio.Event().wait()


def world_that(**methods: Callable[..., Any]) -> type[Desk]:
    return type("Changed", (Desk,), methods)


async def test_a_rollout_is_recorded_whole(log: list[str]) -> None:
    slot = rm.Slot("desk_agent", TASK.identity, repeat=1)
    rollout = await play(Desk, slot=slot, attempt=2)
    assert log == ["setup", "close"]
    assert (rollout.slot, rollout.attempt, rollout.model) == (slot, 2, "scripted")
    assert (rollout.stop, rollout.reward, rollout.failure) == (rm.Stop.DONE, rm.Reward(1.0, {"rang": 1.0}), None)
    assert (rollout.turns, rollout.tool_calls) == (2, 1)
    assert rollout.response.output_text == "done"
    assert rollout.response["id"] == "resp_1"
    assert rollout.response.usage.total_tokens > 0


async def test_without_a_plan_a_slot_names_the_agent_and_the_task(log: list[str]) -> None:
    assert (await play(Desk)).slot == rm.Slot("ToolAgent", TASK.identity)


async def test_every_stage_is_timed(log: list[str]) -> None:
    seconds = (await play(Desk)).seconds
    assert set(seconds) == {"setup", "play", "model", "tools", "verify"}
    assert all(value >= 0 for value in seconds.values())


# Failures.


class Crashing:
    """An agent that plays a turn, and breaks."""

    async def play(self, task: rm.Task, environment: Any, model: rm.Model, trajectory: rm.Trajectory) -> rm.Stop:
        trajectory.add_reply(await model.reply(rm.Conversation(trajectory.prompt)))
        raise LookupError("lost the thread")


class Denying:
    name = "denying"

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        raise rm.ModelError("denied", "unknown key")


class Bug:
    name = "bug"

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        raise KeyError("choices")


@pytest.mark.parametrize(
    ("options", "where", "what"),
    [
        ({"world": world_that(setup=broken(OSError("no disk")))}, "environment", "OSError: no disk"),
        ({"world": Desk, "agent": Crashing()}, "agent", "LookupError: lost the thread"),
        ({"world": Desk, "model": Denying()}, "model", "unknown key"),
        ({"world": Desk, "model": Bug()}, "model", "KeyError: 'choices'"),
        ({"world": world_that(rang=rm.reward(lambda self: 1 / 0))}, "verifier", "ZeroDivisionError"),
        ({"world": world_that(ring=rm.tool(lambda self: 1 / 0))}, "tool", "ZeroDivisionError"),
        ({"world": world_that(user=broken(ValueError("no words")))}, "environment", "ValueError: no words"),
    ],
)
async def test_what_fails_is_recorded_with_its_place_and_the_world_is_closed(
    log: list[str], options: dict[str, Any], where: str, what: str
) -> None:
    rollout = await play(**options)
    assert rollout.reward is None
    assert rollout.stop is rm.Stop.FAILED
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.failure.detail.startswith(what)) == (where, True), rollout.failure
    assert log[-1] == "close"


async def test_a_failure_keeps_what_happened_before_it(log: list[str]) -> None:
    rollout = await play(Desk, agent=Crashing())
    assert [type(item) for item in rollout.response.output] == [rm.FunctionCall]
    assert rollout.turns == 1
    assert {"setup", "model", "play"} <= set(rollout.seconds)

    rollout = await play(world_that(rang=rm.reward(lambda self: 1 / 0)))
    assert rollout.response.output_text == "done"
    assert rollout.response.usage.total_tokens > 0


async def test_a_world_that_cannot_be_made_is_a_failure(log: list[str]) -> None:
    rollout = await play(broken_world)
    assert rollout.failure is not None
    assert rollout.failure.where == "environment"
    assert log == []


def broken_world(task: rm.Task) -> Desk:
    raise OSError("no index")


@pytest.mark.parametrize(
    ("limit", "where", "what", "options"),
    [
        ("setup_s", "environment", "setup took longer than 0.01 s", {"world": world_that(setup=hang)}),
        ("play_s", "agent", "play took longer than 0.01 s", {"world": Desk, "agent": type("A", (), {"play": hang})()}),
        ("verify_s", "verifier", "verify took longer than 0.01 s", {"world": world_that(rang=rm.reward(hang))}),
    ],
)
async def test_a_stage_that_takes_too_long_is_named(
    log: list[str], limit: str, where: str, what: str, options: dict[str, Any]
) -> None:
    rollout = await play(**options, deadlines=rm.Deadlines(**{limit: 0.01}))
    assert rollout.failure == rm.Failure(where, "timeout", what, retryable=True)  # type: ignore[arg-type]
    assert log[-1] == "close"


async def test_a_timeout_inside_a_stage_is_told_from_the_stage_s_own(log: list[str]) -> None:
    rollout = await play(world_that(setup=broken(TimeoutError("the database is slow"))))
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.failure.kind) == ("environment", "timeout")
    assert "the database is slow" in rollout.failure.detail


async def test_the_agent_s_own_deadline_is_no_failure(log: list[str]) -> None:
    class Slow:
        name = "slow"
        reply = hang

    rollout = await play(Desk, model=Slow(), agent=rm.ToolAgent(deadline_s=0.01))
    assert (rollout.stop, rollout.reward) == (rm.Stop.DEADLINE, rm.Reward(0.0, {"rang": 0.0}))


async def test_a_cancelled_rollout_is_closed_and_stays_cancelled(log: list[str]) -> None:
    begun = asyncio.Event()

    class Slow:
        name = "slow"

        async def reply(self, conversation: rm.Conversation) -> rm.Reply:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    task = asyncio.create_task(play(Desk, model=Slow()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["setup", "close"]


@pytest.mark.parametrize("error", [rm.ConfigError("no such file"), rm.ContractError("no reward")])
async def test_a_wrong_caller_is_told_and_the_world_is_closed(log: list[str], error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        await play(world_that(setup=broken(error)))
    assert log == ["close"]


@pytest.mark.parametrize(("close", "what"), [(broken(OSError("busy")), "busy"), (hang, "TimeoutError")])
async def test_a_world_that_does_not_close_keeps_its_reward(
    log: list[str], caplog: pytest.LogCaptureFixture, close: Callable[..., Any], what: str
) -> None:
    with caplog.at_level(logging.WARNING, "rollmill.rollout"):
        rollout = await play(world_that(close=close), deadlines=rm.Deadlines(close_s=0.01))
    assert rollout.reward == rm.Reward(1.0, {"rang": 1.0})
    (record,) = caplog.records
    assert record.message.startswith("close failed: environment=Changed error=")
    assert what in record.message  # type: ignore[attr-defined]


# Tools offered.


async def test_a_row_without_tools_is_asked_with_the_environment_s_and_the_record_says_so(log: list[str]) -> None:
    rollout = await play(Desk)
    offered = rollout.task["responses_create_params"]["tools"]
    assert [tool["name"] for tool in offered] == ["ring"]
    assert rollout.task.identity == TASK.identity


@pytest.mark.parametrize("tools", [[], [{"type": "function", "name": "ring", "description": "Ring!"}]])
async def test_a_row_with_tools_is_asked_with_its_own(log: list[str], tools: list[dict[str, str]]) -> None:
    row = {"responses_create_params": {"input": "Begin.", "tools": tools}}
    rollout = await rm.play(rm.read_task(encode(row), rm.Task), Desk, rm.ToolAgent(), rm.Scripted("done"))
    assert rollout.task["responses_create_params"]["tools"] == tools


async def test_a_world_without_tools_offers_none(log: list[str]) -> None:
    class Plain(rm.Environment):
        def verify(self, task: rm.Task, response: rm.Response) -> float:
            return 1.0

    assert "tools" not in (await play(Plain)).task.params


# Computing.


async def test_a_reward_that_computes_for_too_long_is_a_timeout() -> None:
    let_go = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Endless(rm.Environment):
        @rm.reward(cpu=True, timeout_s=0.01)
        def endless(task: rm.Task, trajectory: rm.Trajectory, snapshot: Any) -> float:
            return float(asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result(timeout=30))

    rollout = await play(Endless)
    let_go.set()
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.failure.kind) == ("verifier", "timeout")
    assert rollout.failure.detail == "endless computed for longer than 0.01 s"


async def test_a_timeout_that_a_reward_raises_itself_says_what_it_says() -> None:
    class Impatient(rm.Environment):
        @rm.reward(cpu=True)
        def impatient(task: rm.Task, trajectory: rm.Trajectory, snapshot: Any) -> float:
            raise TimeoutError("the solver gave up")

    failure = (await play(Impatient)).failure
    assert failure is not None
    assert "the solver gave up" in failure.detail


# Verified later.


async def test_a_deferred_reward_is_a_placeholder_that_says_so(log: list[str]) -> None:
    rollout = await play(Desk, judge=Deferred(-1.0))
    assert rollout.failure is None
    assert rollout.reward == rm.Reward(-1.0, notes={"verification_skipped": True})
    assert log == ["setup", "close"]


async def test_a_reward_that_is_put_off_is_found_later(log: list[str]) -> None:
    rollout = await play(Desk, judge=Deferred())
    assert await rm.verify_again(stored(rollout), Desk) == rm.Reward(1.0, {"rang": 1.0})


async def test_putting_the_reward_off_asks_the_environment_for_nothing(log: list[str]) -> None:
    world = world_that(rang=rm.reward(lambda self: 1 / 0))
    assert (await play(world)).failure is not None
    assert (await play(world, judge=Deferred())).failure is None


# Verified again.


def stored(rollout: rm.Rollout, *output: rm.Item) -> rm.Rollout:
    """A rollout as it comes back from a file, perhaps with another output."""
    items = tuple(read_item(bytes(item.json)) for item in output or rollout.response.output)
    response = msgspec.structs.replace(rollout.response, output=items)
    return msgspec.structs.replace(rollout, response=response)


class Saying(rm.Environment):
    verification = "stateless"

    def verify(self, task: rm.Task, response: rm.Response) -> rm.Reward:
        return rm.Reward(float("42" in response.output_text), metrics={"turns": self.trajectory.turns})


async def test_a_stateless_reward_is_found_again_from_the_row_alone() -> None:
    rollout = await play(Saying, "it is 42")
    assert await rm.verify_again(stored(rollout), Saying) == rollout.reward == rm.Reward(1.0, metrics={"turns": 1.0})
    assert (await rm.verify_again(stored(rollout, rm.assistant("it is 41")), Saying)).value == 0


async def test_a_world_is_replayed_to_where_it_was_left(log: list[str]) -> None:
    rollout = await play(Desk, rm.call("ring", times=2), rm.call("ring"), rm.call("rign"), "done")
    log.clear()
    assert await rm.verify_again(stored(rollout), Desk) == rollout.reward == rm.Reward(3.0, {"rang": 3.0})
    assert log == ["setup", "close"]


async def test_a_call_id_that_was_used_twice_is_replayed_twice(log: list[str]) -> None:
    rollout = await play(Desk, rm.call("ring", "same"), rm.call("ring", "same", times=2), "done")
    assert (await rm.verify_again(stored(rollout), Desk)).value == 3


async def test_parallel_calls_are_replayed_in_their_order(log: list[str]) -> None:
    rollout = await play(Desk, [rm.call("ring", "a"), rm.call("ring", "b", times=2)], "done")
    assert (await rm.verify_again(stored(rollout), Desk)).value == 3


async def test_a_call_that_was_never_played_is_not_replayed(log: list[str]) -> None:
    rollout = await play(Desk, rm.call("ring"), agent=rm.ToolAgent(max_tool_calls=1))
    assert rollout.stop is rm.Stop.MAX_TOOL_CALLS
    assert (await rm.verify_again(stored(rollout), Desk)).value == 1


async def test_a_tool_that_looks_back_sees_what_it_saw(log: list[str]) -> None:
    class Mirror(Desk):
        @rm.tool
        def last_words(self) -> str:
            """What was said last."""
            return self.trajectory.answer

    rollout = await play(Mirror, [rm.assistant("one"), rm.call("last_words")], "done")
    assert (await rm.verify_again(stored(rollout), Mirror)) == rollout.reward


async def test_a_reward_that_counts_turns_and_tokens_is_the_same_again(log: list[str]) -> None:
    class Thrifty(Desk):
        @rm.reward
        def thrift(self) -> float:
            return 1 / (self.trajectory.turns + self.trajectory.tool_calls + self.trajectory.usage.total_tokens)

    rollout = await play(Thrifty)
    assert await rm.verify_again(stored(rollout), Thrifty) == rollout.reward


async def test_a_replay_that_differs_is_said(log: list[str]) -> None:
    rollout = await play(Desk)
    other = [
        rm.FunctionCallOutput(call_id=item.call_id, output="7") if isinstance(item, rm.FunctionCallOutput) else item
        for item in rollout.response.output
    ]
    with pytest.raises(rm.RolloutError, match=r"ring\({}\) answered '7' when it was played, and now '1'") as caught:
        await rm.verify_again(stored(rollout, *other), Desk)
    assert (caught.value.failure.where, caught.value.failure.kind) == ("verifier", "replay_differs")
    assert log[-1] == "close"


async def test_what_declares_nothing_is_not_verified_again(log: list[str]) -> None:
    rollout = await play(Desk)
    with pytest.raises(rm.ContractError, match="declares verification = unsupported"):
        await rm.verify_again(stored(rollout), type("Undeclared", (Desk,), {"verification": "unsupported"}))


async def test_a_failure_while_verifying_again_has_its_place(log: list[str]) -> None:
    rollout = await play(Desk)
    with pytest.raises(rm.RolloutError) as caught:
        await rm.verify_again(stored(rollout), world_that(rang=rm.reward(lambda self: 1 / 0)))
    assert caught.value.failure.where == "verifier"
    assert log[-1] == "close"


async def test_a_record_is_json() -> None:
    rollout = await play(Saying, "it is 42")
    assert json.loads(encode(rollout.response.wire()))["output_text"] == "it is 42"
