"""A model as a service: the Responses API and Chat Completions, as bodies and as streams."""

import json
from typing import Any

import pytest
from msgspec import Raw
from tests.serve.conftest import Heard, ask, post

import rollmill as rm
from rollmill.errors import ModelError, OutageError
from rollmill.serve.app import App
from rollmill.serve.model import ModelService

CANARY = "sk-canary-0123456789"
SEARCH = {"type": "function", "name": "search", "parameters": {"type": "object"}}


class Asked:
    """A model that remembers what it was asked, and answers what it was given."""

    def __init__(self, *lines: Any) -> None:
        self.name = "asked"
        self.heard: list[rm.Conversation] = []
        self._model = rm.Scripted(*lines, name=self.name)

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        self.heard.append(conversation)
        return await self._model.reply(conversation)


class Failing:
    name = "failing"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        raise self._error


def app_of(model: Any) -> App:
    return ModelService("policy_model", model, hide=lambda text: text.replace(CANARY, "***")).app


async def respond(model: Any, body: Any = None, **options: Any) -> Heard:
    return await post(app_of(model), "/v1/responses", {"input": "Hello?"} if body is None else body, **options)


async def complete(model: Any, body: Any) -> Heard:
    return await post(app_of(model), "/v1/chat/completions", body)


def params(conversation: rm.Conversation) -> dict[str, Any]:
    return {name: json.loads(bytes(value)) for name, value in conversation.params.items()}


def said(conversation: rm.Conversation) -> list[dict[str, Any]]:
    return [json.loads(bytes(item.json)) for item in conversation.items]


# The Responses API.


async def test_an_answer_has_every_field_that_clients_insist_on():
    answer = (await respond(Asked("Hello."))).json
    assert answer["output"][0]["content"] == [{"type": "output_text", "text": "Hello.", "annotations": []}]
    assert (answer["object"], answer["status"], answer["model"], answer["error"]) == (
        "response",
        "completed",
        "asked",
        None,
    )
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]
    assert {"id", "created_at", "incomplete_details", "parallel_tool_calls", "tool_choice", "tools"} < answer.keys()
    assert "content" not in answer


async def test_a_text_stands_for_a_users_message_and_items_are_passed_on_as_they_came():
    model = Asked()
    await respond(model, {"input": "Hello?"})
    await respond(model, b'{"input": [{"type": "dream", "x": 1.50}, {"role": "user", "content": "Hi"}]}')
    assert said(model.heard[0]) == [{"type": "message", "role": "user", "content": "Hello?"}]
    assert bytes(model.heard[1].items[0].json) == b'{"type": "dream", "x": 1.50}'


async def test_the_name_that_is_asked_for_does_not_matter_and_everything_else_is_passed_on():
    model = Asked()
    asked = {
        "input": "x",
        "model": "gpt-9",
        "stream": False,
        "stream_options": None,
        "temperature": 0.5,
        "tools": [SEARCH],
    }
    answer = (await respond(model, asked | {"vendor": {"top_k": 3}})).json
    assert params(model.heard[0]) == {"temperature": 0.5, "tools": [SEARCH], "vendor": {"top_k": 3}}
    assert (answer["model"], answer["tools"]) == ("asked", [SEARCH])


async def test_which_turn_it_is_is_what_was_said_or_what_the_header_says():
    model = Asked("first", "second", "third")
    turn = [{"role": "user", "content": "?"}, {"type": "message", "role": "assistant", "content": "first"}]
    assert (await respond(model, {"input": [*turn, turn[0]]})).json["output_text"] == "second"
    for given, expected in (("2", "third"), ("-1", "first"), ("1e3", "first"), ("²", "first"), ("9" * 99, "first")):
        assert (await respond(model, headers=[("x-rollmill-turn", given)])).json["output_text"] == expected


async def test_a_client_that_sends_its_cookie_back_stays_one_conversation():
    model = Asked()
    cookie = (await respond(model)).cookie
    await respond(model, cookie=cookie)
    assert model.heard[0].id == ""
    assert cookie == f"Asked___policy_model={model.heard[1].id}"
    await respond(model, headers=[("x-rollmill-conversation", "mine")], cookie=cookie)
    assert model.heard[2].id == "mine"


async def test_a_cookie_of_somebody_else_is_not_sent_back():
    cookie = 'Asked___policy_model="a\\015\\012Set-Cookie: b=c"'
    assert "\\015" not in (await respond(Asked(), cookie=cookie)).cookie


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 422, "input"),
        ({"input": None}, 422, "input"),
        ({"input": 3}, 422, "input"),
        ({"input": ["x"]}, 422, "`input`"),
        ({"input": [{"type": 3}]}, 422, "`input`"),
        ({"input": [{"type": "message"}]}, 422, "role"),
        ({"input": [{"type": "function_call_output", "call_id": 1}]}, 422, "call_id"),
        ({"input": "x", "tools": "all"}, 422, "tools"),
        ({"input": "x", "tools": [3]}, 422, "tools"),
        ({"input": "x", "temperature": "hot"}, 422, "temperature"),
        ({"input": "x", "max_output_tokens": 1.5}, 422, "max_output_tokens"),
        ({"input": "x", "metadata": {"a": 1}}, 422, "metadata"),
        ({"input": "x", "stream": "yes"}, 422, "stream"),
        ([], 422, "object"),
        (b"", 400, "no JSON"),
        (b'{"input": "\\udfff"}', 400, "no JSON"),
    ],
)
async def test_requests_that_are_none(body, status, said):
    answer = await respond(Asked(), body)
    assert answer.status == status
    assert said in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        (rm.Stop.LENGTH, "incomplete", "max_output_tokens"),
        (rm.Stop.CONTEXT, "incomplete", "max_output_tokens"),
        (rm.Stop.CONTENT_FILTER, "incomplete", "content_filter"),
        (None, "completed", None),
    ],
)
async def test_why_an_answer_ended(stop, status, reason):
    reply = rm.Reply((rm.assistant("a m"),), stop=stop, fields={"id": Raw(b'"resp_9"')})
    answer = (await respond(Fixed(reply))).json
    assert (answer["id"], answer["status"]) == ("resp_9", status)
    assert answer["incomplete_details"] == (reason and {"reason": reason})


class Fixed:
    name = "fixed"

    def __init__(self, reply: rm.Reply) -> None:
        self._reply = reply

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        return self._reply


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ModelError("caller", "bad"), 400, "model_caller"),
        (ModelError("denied", "no"), 403, "model_denied"),
        (ModelError("rate_limit", "slow down", retry_after_s=1.2), 429, "model_rate_limit"),
        (ModelError("overload", "busy"), 503, "model_overload"),
        (ModelError("transport", "gone"), 502, "model_transport"),
        (ModelError("timeout", "late"), 504, "model_timeout"),
        (ModelError("malformed", "odd"), 502, "model_malformed"),
        (OutageError("no call has succeeded"), 503, "outage"),
        (rm.ConfigError("no such deployment"), 500, "config"),
        (rm.ContractError("no reply"), 500, "contract"),
        (ValueError("a bug"), 500, "model_error"),
        (TimeoutError(), 504, "model_timeout"),
        (SystemExit(1), 500, "model_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_every_failure_has_a_status_and_a_code(error, status, code, path):
    body = {"input": "x", "messages": [{"role": "user", "content": "x"}]}
    answer = await post(app_of(Failing(error)), path, body)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers.get("retry-after") == ("2" if status == 429 else None)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_no_secret_in_what_is_said_of_a_failure(path, stream):
    for error in (ModelError("overload", f"said {CANARY}"), RuntimeError(CANARY), rm.ConfigError(CANARY)):
        body = {"input": "x", "messages": [{"role": "user", "content": "x"}], "stream": stream}
        answer = await post(app_of(Failing(error)), path, body)
        assert b"***" in answer.body
        assert CANARY.encode() not in answer.body


async def test_the_models_name():
    answer = (await ask(app_of(Asked()), "GET", "/v1/models")).json
    assert [model["id"] for model in answer["data"]] == ["asked"]


# Its stream.


def events(answer: Heard) -> list[dict[str, Any]]:
    """What a stream says, each event under its own name."""
    found = []
    for block in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def test_a_stream_of_text():
    answer = await respond(Asked("Hello, you."), {"input": "x", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = events(answer)
    assert [event["type"].removeprefix("response.") for event in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    assert found[4]["delta"] == "Hello, you."
    assert found[0]["response"]["output"] == []
    assert found[-1]["response"]["output_text"] == "Hello, you."
    assert len({event["item_id"] for event in found if "item_id" in event}) == 1


async def test_a_stream_of_a_call_after_thoughts():
    thought = rm.read_item(b'{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]}')
    line = (thought, rm.call("search", "c1", query="x"), rm.read_item(b'{"type":"dream","x":1.50}'))
    found = events(await respond(Asked(line), {"input": "x", "stream": True}))
    assert [event["item"]["type"] for event in found if event["type"] == "response.output_item.done"] == [
        *("reasoning", "function_call", "dream")
    ]
    [done] = [event for event in found if event["type"] == "response.function_call_arguments.done"]
    assert json.loads(done["arguments"]) == {"query": "x"}
    assert done["output_index"] == 1


async def test_a_stream_of_an_answer_that_was_cut():
    reply = rm.Reply((rm.assistant("a m"),), stop=rm.Stop.LENGTH)
    assert events(await respond(Fixed(reply), {"input": "x", "stream": True}))[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("content", [None, "plain text", []])
async def test_a_stream_of_messages_in_every_form(content):
    item = rm.read_item(json.dumps({"type": "message", "role": "assistant", "content": content}).encode())
    assert events(await respond(Asked((item,)), {"input": "x", "stream": True}))[-1]["type"] == "response.completed"


async def test_a_stream_of_nothing():
    assert events(await respond(Fixed(rm.Reply(())), {"input": "x", "stream": True}))[-1]["response"]["output"] == []


async def test_a_failure_in_a_stream_is_its_end():
    found = events(await respond(Failing(ModelError("overload", "busy")), {"input": "x", "stream": True}))
    assert [event["type"] for event in found] == ["response.created", "response.failed"]
    assert found[-1]["response"]["error"] == {"code": "model_overload", "message": "model: busy"}
    assert found[-1]["response"]["status"] == "failed"


# Chat Completions.

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "Look."}],
    },
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "nothing"}]},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": None},
]


async def test_a_talk_becomes_a_conversation():
    model = Asked()
    await complete(model, {"messages": TALK})
    assert said(model.heard[0]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "data:x", "detail": "auto"},
                {"type": "input_text", "text": "Look."},
            ],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "name": "search", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I see.", "annotations": []}],
        },
        {"role": "user", "content": ""},
    ]


async def test_its_parameters_are_those_of_the_other_api():
    model = Asked()
    function = {"name": "search", "parameters": {"type": "object"}}
    schema = {"name": "answer", "schema": {"type": "object"}}
    asked = {
        "messages": TALK[:1],
        "model": "x",
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "reasoning_effort": "low",
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "search"}},
        "response_format": {"type": "json_schema", "json_schema": schema},
        "n": 1,
    }
    await complete(model, asked)
    assert params(model.heard[0]) == {
        "max_output_tokens": 9,
        "temperature": 0.5,
        "reasoning": {"effort": "low"},
        "tools": [{"type": "function", **function}],
        "tool_choice": {"type": "function", "name": "search"},
        "text": {"format": {"type": "json_schema", **schema}},
    }


async def test_a_completion():
    answer = (await complete(Asked("Hello."), {"messages": TALK[:1]})).json
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Hello.", "refusal": None}
    assert (answer["choices"][0]["finish_reason"], answer["object"]) == ("stop", "chat.completion")
    assert answer["usage"]["total_tokens"] > 0


async def test_a_completion_that_calls():
    answer = (await complete(Asked(rm.call("search", "c1", query="x")), {"messages": TALK[:1]})).json
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"query":"x"}'}


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [3],
        [{"content": "x"}],
        [{"role": "king", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [3]}],
        [{"role": "user", "content": [{"text": "x"}]}],
        [{"role": "user", "content": [{"type": "other", "text": 5}]}],
        [{"role": "user", "content": [{"type": 5}]}],
        [{"role": "assistant", "tool_calls": [{"id": "x"}]}],
        [{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "y", "arguments": {}}}]}],
        [{"role": "tool", "tool_call_id": 3}],
    ],
)
async def test_talks_that_are_none(messages):
    answer = await complete(Asked(), {"messages": messages})
    assert (answer.status, answer.code) == (422, "invalid")


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"tools": [3]}, {"stream": 1}, {"max_tokens": "x"}, {"response_format": "json"}]
)
async def test_parameters_that_are_none(more):
    assert (await complete(Asked(), {"messages": TALK[:1], **more})).status == 422


def chunks(answer: Heard) -> list[dict[str, Any]]:
    *blocks, last = answer.body.decode().removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


async def test_a_stream_of_a_completion():
    asked = {"messages": TALK[:1], "stream": True, "stream_options": {"include_usage": True}}
    *said, ending, usage = chunks(await complete(Asked("Hello."), asked))
    assert [chunk["choices"][0]["delta"] for chunk in said] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello."},
    ]
    assert ending["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["total_tokens"] > 0) == ([], True)
    assert len({chunk["id"] for chunk in (*said, ending, usage)}) == 1
    assert "usage" not in chunks(await complete(Asked("Hello."), asked | {"stream_options": None}))[-1]


async def test_a_failure_before_a_stream_is_a_status():
    answer = await complete(Failing(ModelError("overload", "busy")), {"messages": TALK[:1], "stream": True})
    assert (answer.status, answer.code) == (503, "model_overload")
