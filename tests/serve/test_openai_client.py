"""OpenAI's own client on a served model: what it reads of answers, streams and mistakes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from tests.serve.conftest import on_a_port

import rollmill as rm
from rollmill.errors import ModelError
from rollmill.model import Secret
from rollmill.serve.guard import Guard
from rollmill.serve.model import ModelService

TOOL = {"type": "function", "name": "search", "parameters": {"type": "object"}, "strict": False}
TOKEN = "token-of-tests"


@asynccontextmanager
async def client_of(model: Any, *, token: str = "", key: str = "any") -> AsyncIterator[openai.AsyncOpenAI]:
    guard = Guard(token=Secret(token) if token else None)
    async with on_a_port(ModelService("policy_model", model, guard=guard).app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=20) as client:
            yield client


def calling() -> rm.Scripted:
    return rm.Scripted(rm.call("search", "c1", query="x"), "It is x.")


class Failing:
    name = "failing"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        raise self._error


async def test_responses():
    async with client_of(calling()) as client:
        answer = await client.responses.create(model="any", input="x?", tools=[TOOL])
        call = answer.output[0]
        assert (call.type, call.name, call.arguments) == ("function_call", "search", '{"query":"x"}')
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "x"}
        asked = [{"role": "user", "content": "x?"}, call.model_dump(exclude_none=True), output]
        answer = await client.responses.create(model="any", input=asked)
        assert answer.output_text == "It is x."
        assert answer.usage.total_tokens > 0
        assert (answer.status, answer.model, answer.error) == ("completed", "scripted", None)


async def test_responses_as_a_stream():
    async with client_of(calling()) as client, client.responses.stream(model="any", input="x?") as stream:
        kinds = [event.type async for event in stream]
        assert kinds[0] == "response.created"
        assert "response.function_call_arguments.delta" in kinds
        whole = await stream.get_final_response()
        assert whole.output[0].arguments == '{"query":"x"}'


async def test_text_as_a_stream():
    async with client_of(rm.Scripted("Hello, you.")) as client:
        text = ""
        async for event in await client.responses.create(model="any", input="x?", stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == "Hello, you."
        async with client.responses.stream(model="any", input="x?") as stream:
            assert (await stream.get_final_response()).output_text == "Hello, you."


async def test_a_failure_as_a_stream():
    async with client_of(Failing(ModelError("overload", "busy"))) as client:
        events = [event async for event in await client.responses.create(model="any", input="x", stream=True)]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.message == "model: busy"
        async with client.responses.stream(model="any", input="x") as stream:
            assert [event.type async for event in stream] == ["response.created", "response.failed"]


async def test_chat():
    async with client_of(calling()) as client:
        function = {name: value for name, value in TOOL.items() if name not in ("type", "strict")}
        talk = [{"role": "user", "content": "x?"}]
        tools = [{"type": "function", "function": function}]
        answer = await client.chat.completions.create(model="any", messages=talk, tools=tools)
        choice = answer.choices[0]
        assert (choice.finish_reason, choice.message.tool_calls[0].function.name) == ("tool_calls", "search")
        talk += [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": "c1", "content": "x"}]
        answer = await client.chat.completions.create(model="any", messages=talk)
        assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("stop", "It is x.")
        assert answer.usage.total_tokens > 0


async def test_chat_as_a_stream():
    asked = {"model": "any", "messages": [{"role": "user", "content": "x?"}]}
    async with client_of(rm.Scripted("Hello, you.")) as client:
        text = ""
        stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        assert (text, chunk.usage.total_tokens > 0) == ("Hello, you.", True)
    async with client_of(calling()) as client, client.chat.completions.stream(**asked) as stream:
        [call] = (await stream.get_final_completion()).choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("search", '{"query":"x"}')


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ModelError("caller", "bad"), openai.BadRequestError),
        (ModelError("denied", "no"), openai.PermissionDeniedError),
        (ModelError("rate_limit", "slow down"), openai.RateLimitError),
        (ModelError("overload", "busy"), openai.InternalServerError),
    ],
)
async def test_failures_are_what_the_client_calls_them(error, raised):
    async with client_of(Failing(error)) as client:
        with pytest.raises(raised, match=error.failure.detail):
            await client.responses.create(model="any", input="x")
        with pytest.raises(raised, match=error.failure.detail):
            await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x"}], stream=True)


async def test_a_request_that_is_none():
    async with client_of(calling()) as client:
        with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
            await client.responses.create(model="any", input="x", temperature="hot")


async def test_the_token_is_the_clients_key():
    async with client_of(calling(), token=TOKEN, key="another") as client:
        with pytest.raises(openai.AuthenticationError, match="Bearer TOKEN"):
            await client.responses.create(model="any", input="x")
    async with client_of(calling(), token=TOKEN, key=TOKEN) as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
