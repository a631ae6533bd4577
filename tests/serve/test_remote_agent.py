"""An agent behind a service of anybody's: rollouts taken over, and every fault by its class."""

import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.net.conftest import no_proxy
from tests.serve import other as others
from tests.serve.other import Other, answered, listening

import rollmill as rm
from rollmill.errors import OutageError
from rollmill.net.connection import CallDeadlines
from rollmill.rollout import play
from rollmill.serve.client import Client
from rollmill.serve.remote_agent import Elsewhere, NamedModel, RemoteAgent
from rollmill.store.schema import write_row

__all__ = ["no_proxy"]

TASK = rm.read_task(b'{"responses_create_params": {"input": "What walks on four legs?"}, "answer": "man"}', rm.Task)
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a man"}]}
CALL = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
DEADLINES = CallDeadlines(connect_s=2, first_byte_s=0.2, idle_s=0.2, total_s=5)


@asynccontextmanager
async def agent_of(*answers):
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(listening(Other(*answers)))
        client = Client(other.url, deadlines=DEADLINES, wait_s=0.2)
        yield other, await stack.enter_async_context(RemoteAgent("a", client))


async def played(*answers) -> rm.Rollout:
    async with agent_of(*answers) as (other, agent):
        rollout = await play(TASK, Elsewhere, agent, NamedModel("m"))
        assert other.paths == ["/run"], "a rollout is asked for once"
    return rollout


async def test_a_rollout_of_anybodys_system():
    response = {"output": [CALL, OUTPUT, MESSAGE], "usage": {"input_tokens": 3, "output_tokens": 2}, "id": "r"}
    rollout = await played({"responses_create_params": {"input": "x"}, "response": response, "reward": 1, "seen": 2})
    assert rollout.failure is None
    assert (rollout.reward.value, rollout.reward.metrics) == (1, {"seen": 2})
    assert (rollout.turns, rollout.tool_calls, rollout.response.usage.total_tokens) == (2, 1, 5)
    assert json.loads(write_row(rollout, "r"))["response"]["id"] == "r"


@pytest.mark.parametrize(
    ("incomplete", "stop"),
    [(None, "done"), ({"reason": "max_output_tokens"}, "length"), ({"reason": "content_filter"}, "content_filter")],
)
async def test_why_it_ended(incomplete, stop):
    response = {"output": [MESSAGE], "incomplete_details": incomplete}
    assert (await played({"response": response, "reward": 0})).stop == stop


@pytest.mark.parametrize(
    "answer",
    [
        others.NOT_OURS,
        others.BINARY,
        others.DEEP,
        answered(b""),
        answered(b"<html>"),
        answered([]),
        answered({"reward": 1}),
        answered({"response": {"output": []}}),
        answered({"response": {}, "reward": 1}),
        answered({"response": {"output": [{"type": "message"}]}, "reward": 1}),
        answered({"response": {"output": []}, "reward": "x"}),
        answered(b'{"response": {"output": []}, "reward": 1e999}'),
        answered({"response": {"output": [], "usage": 3}, "reward": 1}),
        answered({"response": {"output": []}, "reward": 1, "rollmill": {"slot": 3}}, x_rollmill="1"),
        answered({"response": {"output": [], "incomplete_details": 3}, "reward": 1}),
    ],
)
async def test_rollouts_that_are_none(answer):
    rollout = await played(answer)
    assert rollout.reward is None
    assert (rollout.failure.where, rollout.failure.kind) == ("agent", "malformed")
    assert len(rollout.failure.detail) < 1000


async def test_a_block_of_ours_that_somebody_echoes_is_not_believed():
    rollout = await played({"response": {"output": [MESSAGE]}, "reward": 1, "rollmill": {"slot": 3}})
    assert (rollout.reward.value, rollout.turns) == (1, 1)


@pytest.mark.parametrize(
    ("status", "again"),
    [(302, False), (400, False), (401, False), (422, False), (500, False), (429, True), (502, True)],
)
async def test_statuses_of_a_program_that_says_no_more(status, again):
    failure = (await played(answered(b"<h1>so it is</h1>", status))).failure
    assert (failure.where, failure.kind, failure.retryable) == ("agent", "error", again)
    assert failure.detail.endswith(f"/run answered {status}: <h1>so it is</h1>")


async def test_nemo_gyms_own_words_of_a_failure():
    said = "Hit an exception in SimpleAgent___a calling an inner server: {}"
    failure = (await played(answered(said, 500))).failure
    assert said in failure.detail


async def test_what_a_service_of_ours_says_of_a_failure_and_of_what_had_happened():
    told = {
        "error": {"message": "tool: the shelf fell over", "code": "tool_error"},
        "failure": {"where": "tool", "kind": "error", "detail": "the shelf fell over"},
        "response": {"output": [CALL, OUTPUT]},
        "rollmill": {"turns": 1, "tool_calls": 1},
        "seconds": {"setup": 0.5, "play": 2},
    }
    rollout = await played(answered(told, 500))
    assert rollout.failure == rm.Failure("tool", "error", "the shelf fell over")
    assert (len(rollout.response.output), rollout.turns, rollout.tool_calls) == (2, 1, 1)
    assert rollout.seconds["setup"] >= 0.5


@pytest.mark.parametrize(
    ("code", "kind"),
    [("outage", OutageError), ("config", rm.ConfigError), ("contract", rm.ContractError), ("no_token", rm.ConfigError)],
)
async def test_what_every_other_rollout_would_come_to_stops_them_all(code, kind):
    with pytest.raises(kind, match="/run answered 500: look"):
        await played(answered({"error": {"message": "look", "code": code}}, 500))


@pytest.mark.parametrize(
    ("answer", "where", "kind"),
    [
        (others.hangs_up, "infrastructure", "unreachable"),
        (others.hangs_up_half_way, "infrastructure", "unreachable"),
        (others.speaks_another_language, "infrastructure", "unreachable"),
        (others.says_nothing, "agent", "timeout"),
    ],
)
async def test_no_answer_at_all(answer, where, kind):
    failure = (await played(answer)).failure
    assert (failure.where, failure.kind, failure.retryable) == (where, kind, True)


async def test_nobody_there_stops_the_run():
    async with agent_of({}) as (other, _):
        pass
    async with RemoteAgent("a", Client(other.url, wait_s=0.1)) as agent:
        with pytest.raises(OutageError, match=r"the agent a at http://127.* cannot be reached: .*refused"):
            await play(TASK, Elsewhere, agent, NamedModel("m"))


async def test_what_plays_elsewhere_cannot_be_asked_from_here():
    with pytest.raises(rm.ContractError, match="answers behind a service"):
        await NamedModel("m").reply(None)
    with pytest.raises(rm.ContractError, match="nothing was played"):
        await Elsewhere(TASK).score(None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"response": {"output": [{"type": "dream", "x": "\xff"}]}, "reward": 1}',
        b'{"response": {"output": [], "note": "\xff"}, "reward": 1}',
        b'{"response": {"output": []}, "reward": 1, "responses_create_params": "\xff"}',
    ],
)
async def test_text_that_is_not_utf8_is_never_taken_over(body):
    assert (await played(answered(body))).failure.kind == "malformed"
