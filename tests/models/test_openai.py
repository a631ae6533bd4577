"""The Responses API: what is said goes there as it is, and what comes back is read without being changed."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Raw

import rollmill as rm
from rollmill.errors import ConfigError, ModelError
from rollmill.model import Conversation, Endpoint, Secret
from rollmill.models.openai import Fields, OpenAI, make, read_response
from rollmill.types import OtherItem, encode, read_item

Serve = Callable[..., Awaitable[Any]]

SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Four.", "annotations": [], "logprobs": []}],
}
USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 6},
    "total_tokens": 40,
}
ANSWER = {"id": "resp_1", "object": "response", "status": "completed", "output": [SAID], "usage": USAGE}


def about(*items: rm.Item, id: str = "", **params: Any) -> Conversation:
    return Conversation(items or (rm.user("2 + 2?"),), {key: Raw(encode(value)) for key, value in params.items()}, id)


async def ask(model: OpenAI, conversation: Conversation | None = None) -> rm.Reply:
    async with model:
        return await model.reply(conversation or about())


def read(**fields: Any) -> rm.Reply:
    return read_response(encode(ANSWER | fields))


# What is asked.


async def test_asks_with_the_model_the_key_the_items_and_the_parameters(serve: Serve) -> None:
    server = await serve(ANSWER)
    await ask(OpenAI("gpt-x", server.url, "sk-1"), about(rm.user("2 + 2?"), temperature=0.5, max_output_tokens=9))
    (heard,) = server.heard
    assert heard.path == "/v1/responses"
    assert heard.headers["Authorization"] == "Bearer sk-1"
    assert heard.json == {
        "model": "gpt-x",
        "temperature": 0.5,
        "max_output_tokens": 9,
        "input": [{"type": "message", "role": "user", "content": "2 + 2?"}],
    }


async def test_items_are_sent_byte_for_byte(serve: Serve) -> None:
    items = [
        b'{ "role":"user" , "content":"caf\\u00e9", "later":{"z":1,"a":[1.0,1e400]} }',
        b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}',
        b'{"type":"web_search_call","id":"ws_1","action":{"query":"x"}}',
        b'{"type":"function_call","call_id":"c","name":"f","arguments":"{ \\"a\\":1}","caller":null}',
        b'{"type":"function_call_output","call_id":"c","output":"9007199254740993"}',
    ]
    server = await serve(ANSWER)
    await ask(OpenAI("gpt-x", server.url), about(*(read_item(item) for item in items)))
    assert b'"input":[' + b",".join(items) + b"]" in server.heard[0].body


async def test_parameters_are_sent_byte_for_byte(serve: Serve) -> None:
    tools = b'[{"type": "function", "name": "f", "parameters": {"b": 1, "a": 9007199254740993}}]'
    server = await serve(ANSWER)
    await ask(OpenAI("gpt-x", server.url), Conversation((), {"tools": Raw(tools)}))
    assert b'"tools":' + tools in server.heard[0].body


async def test_the_row_wins_over_the_configuration_but_for_the_models_name(serve: Serve) -> None:
    server = await serve(ANSWER)
    model = OpenAI("gpt-x", server.url, extra_body={"temperature": 0.1, "service_tier": "flex", "model": "other"})
    await ask(model, about(model="gpt-row", temperature=1.0, top_p=0.5, input="never"))
    asked = server.heard[0].json
    assert asked.pop("input") == [{"type": "message", "role": "user", "content": "2 + 2?"}]
    assert asked == {"model": "gpt-x", "temperature": 1.0, "service_tier": "flex", "top_p": 0.5}


async def test_without_a_key_none_is_sent(serve: Serve) -> None:
    server = await serve(ANSWER)
    await ask(OpenAI("gpt-x", server.url))
    assert "Authorization" not in server.heard[0].headers


async def test_turns_of_a_rollout_stay_on_one_replica(serve: Serve) -> None:
    servers = [await serve(ANSWER) for _ in range(2)]
    async with OpenAI("gpt-x", [server.url for server in servers]) as model:
        for _ in range(4):
            await model.reply(about(id="rollout 1"))
    assert sorted(len(server.heard) for server in servers) == [0, 4]


async def test_is_made_from_a_configuration(serve: Serve) -> None:
    server = await serve(ANSWER)
    model = make(Fields(server.url, Secret("sk-1"), "gpt-x", extra_body={"store": False}))
    assert (model.name, model.places, isinstance(model, Endpoint)) == ("gpt-x", None, True)
    await ask(model)
    assert server.heard[0].json["store"] is False


async def test_the_check_names_the_keys_of_the_configuration() -> None:
    async with OpenAI("gpt-x", "http://model.invalid/v1") as model:
        with pytest.raises(ConfigError, match=r"model\.invalid.*policy_base_url and policy_api_key"):
            await model.check()


# What is answered.


async def test_an_answer_is_items_usage_and_the_rest(serve: Serve) -> None:
    server = await serve(ANSWER)
    reply = await ask(OpenAI("gpt-x", server.url))
    assert reply.text == "Four."
    assert json.loads(bytes(reply.items[0].json)) == SAID
    assert reply.usage == rm.Usage(30, 10, cached_tokens=20, reasoning_tokens=6)
    assert reply.stop is None
    assert reply.fields == {"id": Raw(b'"resp_1"'), "object": Raw(b'"response"'), "status": Raw(b'"completed"')}


def test_items_of_a_later_version_pass_through() -> None:
    later = {"type": "computer_call", "id": "cc_1", "action": {"type": "click", "x": 1}}
    reply = read(output=[later, SAID | {"phase": "final_answer"}])
    assert isinstance(reply.items[0], OtherItem)
    assert [json.loads(bytes(item.json)) for item in reply.items] == [later, SAID | {"phase": "final_answer"}]
    assert reply.text == "Four."


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_answer_over_many_lines_is_kept_on_one(end: str) -> None:
    later = {"type": "later_kind", "number": 9007199254740993, "text": "a\n  b"}
    body = json.dumps(ANSWER | {"output": [SAID, later], "text": {"format": {}}}, indent=2).replace("\n", end)
    reply = read_response(body.encode())
    kept = [bytes(item.json) for item in reply.items] + [bytes(value) for value in reply.fields.values()]
    assert not any(b"\n" in json or b"\r" in json for json in kept)
    assert [json.loads(bytes(item.json)) for item in reply.items] == [SAID, later]


def test_calls_are_found_among_reasoning_and_text() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    wants = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
    reply = read(output=[thought, SAID, wants])
    assert [item.name for item in reply.calls] == ["f"]
    assert isinstance(reply.items[0], rm.Reasoning)
    assert reply.items[0].text == "hm"


def test_a_refusal_is_the_text() -> None:
    reply = read(output=[SAID | {"content": [{"type": "refusal", "refusal": "I would rather not."}]}])
    assert reply.text == "I would rather not."


def test_an_answer_of_nothing_is_one() -> None:
    reply = read(output=[])
    assert (reply.items, reply.text, reply.stop) == ((), "", None)


def test_a_server_that_does_not_count_is_estimated() -> None:
    for reply in (read(usage=None), read_response(encode({"output": [SAID]}))):
        assert reply.usage.estimated
        assert reply.usage.output_tokens > 0


def test_usage_without_details_counts() -> None:
    assert read(usage={"input_tokens": 3, "output_tokens": 4}).usage == rm.Usage(3, 4)
    details = {"input_tokens_details": {"cached_tokens": None}, "output_tokens_details": None}
    assert read(usage={"input_tokens": 3, "output_tokens": 4} | details).usage == rm.Usage(3, 4)


@pytest.mark.parametrize(
    ("incomplete", "stop"),
    [
        (None, None),
        ({"reason": None}, None),
        ({"reason": "max_output_tokens"}, rm.Stop.LENGTH),
        ({"reason": "content_filter"}, rm.Stop.CONTENT_FILTER),
        ({"reason": "something new"}, rm.Stop.LENGTH),
    ],
)
def test_an_incomplete_answer_is_an_ending(incomplete: Any, stop: rm.Stop | None) -> None:
    reply = read(incomplete_details=incomplete, status="incomplete")
    assert (reply.stop, reply.text) == (stop, "Four.")


@pytest.mark.parametrize(
    ("error", "kind", "detail"),
    [
        ({"code": "server_error", "message": "try again"}, "overload", "the model's provider reports: try again"),
        ({"code": "server_error", "message": None}, "overload", "the model's provider reports: server_error"),
        ({"code": "rate_limit_exceeded", "message": "slow"}, "rate_limit", "the model's provider reports: slow"),
        ({"message": "odd"}, "overload", "the model's provider reports: odd"),
        ({"code": "invalid_prompt", "message": "not this"}, "caller", "the model's provider reports: not this"),
        ({"code": "image_too_large", "message": "big"}, "caller", "the model's provider reports: big"),
    ],
)
def test_an_error_may_come_with_status_200(error: Any, kind: str, detail: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(error=error, output=[], status="failed")
    failure = caught.value.failure
    assert (failure.kind, failure.detail, failure.retryable) == (kind, detail, kind != "caller")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>please log in</html>",
        b"null",
        b"[]",
        b"{}",
        b'{"output": null}',
        b'{"output": {}}',
        b'{"output": [1]}',
        b'{"output": [{"type": "message"}]}',
        b'{"output": [{"type": "function_call", "name": "f"}]}',
        b'{"output": [{"type": 3}]}',
        b'{"output": [], "usage": {"input_tokens": "many"}}',
        b'{"output": [{"type": "message", "role": "assistant", "content": "cut',
        b'{"output": [], "\xff": 1}',
        b'{"output": [], "x": "\xff"}',
        b'{"output": [{"type": "dream", "x": "\xff"}]}',
        b'{"output": [{"type": "message", "role": "assistant", "content": "\xff"}]}',
        b'{"output": ' + b"[" * 50_000,
        b'{"error": {"message": "no output"}}',
    ],
)
async def test_what_is_no_answer_is_malformed(serve: Serve, body: bytes) -> None:
    server = await serve(body)
    with pytest.raises(ModelError) as caught:
        await ask(OpenAI("gpt-x", server.url))
    failure = caught.value.failure
    assert (failure.kind, failure.retryable) == ("malformed", True)
    assert failure.detail.startswith("the answer is no Responses API object: ")


async def test_a_conversation_that_no_longer_fits_is_an_ending(serve: Serve) -> None:
    server = await serve((400, {"error": {"message": "too long", "code": "context_length_exceeded"}}))
    reply = await ask(OpenAI("gpt-x", server.url))
    assert (reply.items, reply.stop) == ((), rm.Stop.CONTEXT)


async def test_a_refused_call_is_a_failure_of_the_rollout(serve: Serve) -> None:
    class World(rm.Environment[rm.Task]):
        pass

    server = await serve((503, {"error": {"message": "busy"}}, {"Retry-After": "7"}))
    async with OpenAI("gpt-x", server.url) as model:
        rollout = await rm.play(rm.Task.of("2 + 2?"), World, rm.ToolAgent(), model)
    detail = f"{server.url}/responses answered 503: busy"
    assert rollout.failure == rm.Failure("model", "overload", detail, retryable=True, retry_after_s=7.0)
    assert rollout.stop is rm.Stop.FAILED
