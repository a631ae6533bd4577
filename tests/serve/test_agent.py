"""An agent as a service: rows in, verified rollouts out, and failures with all that had happened."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.places.worlds import Broken, Riddle, Sphinx, Store
from tests.serve.conftest import Asked, nothing, post

import rollmill as rm
from rollmill.environment import opened
from rollmill.errors import ModelError, OutageError
from rollmill.rollout import Deferred, play
from rollmill.serve.agent import AgentService, Player

RIDDLE = {"responses_create_params": {"input": "What walks on four legs?"}, "answer": "man", "id": 7}
CANARY = "sk-canary-0123456789"


class Failing:
    name = "failing"

    def __init__(self, *lines: Any, error: Exception) -> None:
        self._model, self._lines, self._error = rm.Scripted(*lines), len(lines), error

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        if conversation.turn >= self._lines:
            raise self._error
        return await self._model.reply(conversation)


class Waiting:
    """A model that never answers, and notices that nobody waits any more."""

    name = "waiting"

    def __init__(self) -> None:
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError


@asynccontextmanager
async def agent_of(kind: type[rm.Environment], model: Any, **options: Any):
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(opened(kind))

        async def run(task: rm.Task, **more: Any) -> rm.Rollout:
            return await play(task, world, rm.ToolAgent(max_turns=8), model, **more)

        player = Player(
            kind.task_type, lambda task: kind.check_task(task, {}), run, lambda task: run(task, judge=Deferred())
        )
        yield AgentService("my_agent", player, nothing, hide=lambda text: text.replace(CANARY, "***"), **options).app


async def test_a_row_comes_back_verified_with_every_field():
    async with agent_of(Sphinx, rm.Scripted("a man")) as app:
        row = (await post(app, "/run", RIDDLE)).json
    assert (row["reward"], row["id"], row["answer"], row["length"]) == (1, 7, "man", 5)
    assert row["response"]["output_text"] == "a man"
    assert row["rollmill"]["stop"] == "done"


async def test_under_the_prefix_that_names_a_rollout():
    async with agent_of(Sphinx, rm.Scripted("a man")) as app:
        assert (await post(app, "/ng-rollout/3-1-a2/run", RIDDLE)).json["reward"] == 1
        answer = await post(app, "/ng-rollout/3-1/training-token-capture/v1/responses", {"input": "x", "answer": "y"})
        assert (answer.status, answer.code) == (422, "invalid")


async def test_a_failure_has_its_address_and_what_had_happened():
    model = Failing(rm.call("look"), error=ModelError("rate_limit", f"slow down, {CANARY}", retry_after_s=2))
    row = {"responses_create_params": {"input": "Apples."}, "stock": {"apple": 1}, "want": {}}
    async with agent_of(Store, model) as app:
        answer = await post(app, "/run", row)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "model_rate_limit", "2")
    told = answer.json
    assert told["failure"] == {
        "where": "model",
        "kind": "rate_limit",
        "detail": "slow down, ***",
        "retryable": True,
        "retry_after_s": 2,
    }
    assert [item["type"] for item in told["response"]["output"]] == ["function_call", "function_call_output"]
    assert told["rollmill"] == {"turns": 1, "tool_calls": 1}


async def test_a_verdict_that_breaks():
    async with agent_of(Broken, rm.Scripted("x")) as app:
        answer = await post(app, "/run", {"responses_create_params": {"input": "x"}})
    assert (answer.status, answer.code) == (500, "verifier_error")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OutageError("no call has succeeded"), 503, "outage"),
        (rm.ConfigError("no such model"), 500, "config"),
        (rm.ContractError("no reply"), 500, "contract"),
    ],
)
async def test_what_stops_a_run_stops_it_from_here(error, status, code):
    async with agent_of(Sphinx, Failing(error=error)) as app:
        for path, body in (("/run", RIDDLE),):
            answer = await post(app, path, body)
            assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\xff", 400),
        ([], 422),
        ({}, 422),
        ({"responses_create_params": {}}, 422),
        ({"responses_create_params": {"input": 3}}, 422),
        ({"responses_create_params": {"input": [{"type": "message"}]}}, 422),
        ({"responses_create_params": {"input": "x"}}, 422),
        (RIDDLE | {"answer": 3}, 422),
        (RIDDLE | {"agent_ref": 3}, 422),
    ],
)
async def test_rows_that_are_none(body, status):
    async with agent_of(Sphinx, rm.Scripted()) as app:
        assert (await post(app, "/run", body)).status == status


async def test_a_task_that_its_world_refuses():
    class Picky(Sphinx):
        @classmethod
        def check_task(cls, task, config):
            raise rm.ConfigError("no riddle")

    async with agent_of(Picky, rm.Scripted()) as app:
        answer = await post(app, "/run", RIDDLE)
    assert (answer.status, answer.json["error"]["message"]) == (422, "no riddle")


async def test_a_conversation_without_a_verdict():
    async with agent_of(rm.Environment, rm.Scripted("Hello.")) as app:
        answer = (await post(app, "/v1/responses", {"input": "Hello?", "temperature": 0.5})).json
        assert answer["output_text"] == "Hello."
        assert (answer["object"], answer["status"]) == ("response", "completed")
        stream = await post(app, "/v1/responses", {"input": "Hello?", "stream": True})
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert json.loads(stream.body.split(b"data: ")[-1])["type"] == "response.completed"
        assert (await post(app, "/v1/responses", {"input": "Hello?", "stream": 3})).status == 422


async def test_a_conversation_with_an_agent_whose_tasks_need_more():
    async with agent_of(Sphinx, rm.Scripted()) as app:
        answer = await post(app, "/v1/responses", {"input": "Hello?"})
    assert answer.status == 422
    assert answer.json["error"]["message"].endswith("post rows of this agent's tasks to /run")


async def test_no_more_rollouts_than_there_may_be():
    model = Waiting()
    async with agent_of(Sphinx, model, most=1) as app:
        first = Asked(app, "POST", "/run", RIDDLE)
        running = asyncio.create_task(first.answer())
        await model.asked.wait()
        answer = await post(app, "/run", RIDDLE)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "full", "1")
        first.leave()
        assert await running is None


async def test_a_client_that_goes_away_ends_its_rollout_and_closes_its_world():
    closed = []

    class Closing(Sphinx):
        async def close(self) -> None:
            closed.append(self)

    model = Waiting()
    async with agent_of(Closing, model) as app:
        asked = Asked(app, "POST", "/run", RIDDLE)
        running = asyncio.create_task(asked.answer())
        await model.asked.wait()
        asked.leave()
        assert await running is None
        assert model.left.is_set()
        assert len(closed) == 1


async def test_metrics_of_many_rollouts():
    async with agent_of(Sphinx, rm.Scripted()) as app:
        body = {"verify_responses": [{"reward": 1}, {"reward": 0}], "another": "field"}
        assert (await post(app, "/aggregate_metrics", body)).json == {"rows": 2}
        for wrong in ({}, {"verify_responses": {}}, {"verify_responses": ["x"]}, b"x"):
            assert (await post(app, "/aggregate_metrics", wrong)).status in (400, 422)


def test_rows_of_its_tasks_are_what_it_describes():
    service = AgentService("a", Player(Riddle, print, print, print), nothing)
    assert {route.path for route in service.app.routes} >= {"/run", "/v1/responses", "/aggregate_metrics"}
