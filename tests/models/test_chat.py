"""Items of the Responses API as Chat Completions, and back."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

import rollmill as rm
from rollmill.errors import ModelError
from rollmill.models.chat import Dialect, read_completion, to_reply, to_request
from rollmill.types import Tokens, decode, encode, read_item

PLAIN = Dialect()
THINKS = Dialect(think_tags=True)
COUNTS = Dialect(tokens=True)
TOKENS = Tokens([1, 2], [3, 4], [-0.5, -0.25])
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "name": "get_weather", "description": "Sky.", "parameters": WEATHER, "strict": True}
NESTED = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Sky.", "parameters": WEATHER, "strict": True},
}


def item(**fields: Any) -> rm.Item:
    return read_item(encode(fields))


def said(role: str, content: Any) -> rm.Item:
    return item(role=role, content=content)


def thought(text: str, **fields: Any) -> rm.Item:
    return item(type="reasoning", summary=[{"type": "summary_text", "text": text}], **fields)


def output(call_id: str, text: Any) -> rm.Item:
    return item(type="function_call_output", call_id=call_id, output=text)


def tool_call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def request(items: Sequence[rm.Item] = (), dialect: Dialect = PLAIN, **params: Any) -> dict[str, Any]:
    body = to_request(items, {key: Raw(encode(value)) for key, value in params.items()}, dialect)
    return decode(encode(body))


def messages(*items: rm.Item, dialect: Dialect = PLAIN) -> Any:
    return request(items, dialect)["messages"]


def body(**params: Any) -> dict[str, Any]:
    """What becomes of parameters; there are no messages."""
    asked = request(**params)
    assert asked.pop("messages") == []
    return asked


# Items as messages.

ROME, OSLO = rm.call("get_weather", "a", city="Rome"), rm.call("get_weather", "b", city="Oslo")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param([rm.user("hi")], [{"role": "user", "content": "hi"}], id="user"),
        pytest.param([said("system", "be kind")], [{"role": "system", "content": "be kind"}], id="system"),
        pytest.param([said("developer", "be kind")], [{"role": "system", "content": "be kind"}], id="developer"),
        pytest.param(
            [said("user", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])],
            [{"role": "user", "content": "ab"}],
            id="text in parts",
        ),
        pytest.param(
            [
                said(
                    "user",
                    [
                        {"type": "input_text", "text": "what is it?"},
                        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                        {"type": "input_image", "image_url": "https://host/cat.png", "detail": None},
                        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                    ],
                )
            ],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "what is it?"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                        {"type": "image_url", "image_url": {"url": "https://host/cat.png"}},
                        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                    ],
                }
            ],
            id="images",
        ),
        pytest.param(
            [said("user", [{"type": "input_text"}, {"type": "input_image", "image_url": "https://host/cat.png"}])],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": ""},
                        {"type": "image_url", "image_url": {"url": "https://host/cat.png"}},
                    ],
                }
            ],
            id="a text part without text",
        ),
        pytest.param([said("user", None)], [{"role": "user", "content": ""}], id="nothing said"),
        pytest.param([rm.assistant("hi")], [{"role": "assistant", "content": "hi"}], id="assistant"),
        pytest.param(
            [said("assistant", [{"type": "refusal", "refusal": "no"}])],
            [{"role": "assistant", "content": "no"}],
            id="refusal",
        ),
        pytest.param(
            [rm.user("sky?"), rm.assistant("I look."), ROME, OSLO, output("a", "sun"), output("b", "rain")],
            [
                {"role": "user", "content": "sky?"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [tool_call("a", '{"city":"Rome"}'), tool_call("b", '{"city":"Oslo"}')],
                },
                {"role": "tool", "tool_call_id": "a", "content": "sun"},
                {"role": "tool", "tool_call_id": "b", "content": "rain"},
            ],
            id="text and two calls are one message",
        ),
        pytest.param(
            [ROME],
            [{"role": "assistant", "content": "", "tool_calls": [tool_call("a", '{"city":"Rome"}')]}],
            id="a call alone has an empty content",
        ),
        pytest.param(
            [output("a", [{"type": "input_text", "text": "s"}, {"type": "input_text", "text": "un"}])],
            [{"role": "tool", "tool_call_id": "a", "content": "sun"}],
            id="output in parts",
        ),
        pytest.param(
            [ROME, output("a", "sun"), OSLO, output("b", "rain"), rm.assistant("So.")],
            [
                {"role": "assistant", "content": "", "tool_calls": [tool_call("a", '{"city":"Rome"}')]},
                {"role": "tool", "tool_call_id": "a", "content": "sun"},
                {"role": "assistant", "content": "", "tool_calls": [tool_call("b", '{"city":"Oslo"}')]},
                {"role": "tool", "tool_call_id": "b", "content": "rain"},
                {"role": "assistant", "content": "So."},
            ],
            id="one call after the other",
        ),
        pytest.param(
            [thought("hm"), rm.assistant("Sun."), rm.user("and now?")],
            [
                {"role": "assistant", "content": "Sun.", "reasoning_content": "hm"},
                {"role": "user", "content": "and now?"},
            ],
            id="reasoning",
        ),
        pytest.param(
            [thought("short", content=[{"type": "reasoning_text", "text": "long"}]), ROME],
            [
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": "long",
                    "tool_calls": [tool_call("a", '{"city":"Rome"}')],
                }
            ],
            id="reasoning itself rather than its summary",
        ),
        pytest.param(
            [rm.user("hi"), item(type="item_reference", id="x"), rm.assistant("ho")],
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
            id="an item that chat has no word for",
        ),
    ],
)
def test_items_become_messages(items: list[rm.Item], expected: list[Any]) -> None:
    assert messages(*items) == expected


def test_reasoning_lies_in_the_text_where_the_server_has_no_parser_for_it() -> None:
    assert messages(thought("hm"), rm.assistant("Sun."), dialect=THINKS) == [
        {"role": "assistant", "content": "<think>hm</think>Sun."}
    ]
    assert messages(thought("hm"), ROME, dialect=THINKS) == [
        {
            "role": "assistant",
            "content": "<think>hm</think>",
            "tool_calls": [tool_call("a", '{"city":"Rome"}')],
        }
    ]


def test_the_role_developer_stays_where_it_is_known() -> None:
    assert messages(said("developer", "be kind"), dialect=Dialect(developer=True))[0]["role"] == "developer"


def test_instructions_are_the_first_message() -> None:
    asked = request([said("system", "be kind"), rm.user("hi")], instructions="be brief")
    assert [message["content"] for message in asked["messages"]] == ["be brief", "be kind", "hi"]
    assert asked["messages"][0]["role"] == "system"
    assert "instructions" not in asked


def test_tokens_go_back_on_the_message_that_they_are_of() -> None:
    items = [rm.user("sky?"), thought("hm"), ROME.with_tokens(TOKENS), output("a", "sun"), rm.assistant("Sun.")]
    _, called, _, answered = messages(*items, dialect=COUNTS)
    assert called["prompt_token_ids"] == [1, 2]
    assert called["generation_token_ids"] == [3, 4]
    assert called["generation_log_probs"] == [-0.5, -0.25]
    assert "prompt_token_ids" not in answered
    assert not any("token_ids" in key for message in messages(*items) for key in message)


@pytest.mark.parametrize("dialect", [PLAIN, COUNTS])
def test_two_model_calls_in_a_row_stay_two_messages(dialect: Dialect) -> None:
    later = Tokens([1, 2, 3, 4], [5], [-1.0])
    first, second = messages(
        thought("hm").with_tokens(TOKENS), thought("so"), rm.assistant("Sun.").with_tokens(later), dialect=dialect
    )
    assert (first["reasoning_content"], first["content"]) == ("hm", "")
    assert (second["reasoning_content"], second["content"]) == ("so", "Sun.")
    assert [message.get("generation_token_ids") for message in (first, second)] == (
        [[3, 4], [5]] if dialect.tokens else [None, None]
    )


# Parameters.


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}, id="known to both"),
        pytest.param({"seed": 7, "min_p": 0.1, "stop": ["x"]}, {"seed": 7, "min_p": 0.1, "stop": ["x"]}, id="unknown"),
        pytest.param({"temperature": None, "max_output_tokens": None, "tools": None, "text": None}, {}, id="nulls"),
        pytest.param({"max_output_tokens": 48}, {"max_tokens": 48}, id="length"),
        pytest.param({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}, id="effort"),
        pytest.param({"reasoning": {"summary": "auto"}}, {}, id="no effort"),
        pytest.param(
            {
                "store": True, "include": ["reasoning.encrypted_content"], "previous_response_id": "resp_1",
                "conversation": "c", "truncation": "auto", "background": False, "service_tier": "auto",
                "prompt": {"id": "p"}, "prompt_cache_key": "k", "safety_identifier": "u", "max_tool_calls": 3,
                "metadata": {"topic": "weather"}, "stream": True, "stream_options": {"include_obfuscation": False},
                "input": [{"role": "user", "content": "never"}],
            },
            {},
            id="what only the Responses API knows",
        ),
        pytest.param({"tools": [TOOL]}, {"tools": [NESTED]}, id="a flat tool"),
        pytest.param({"tools": [NESTED]}, {"tools": [NESTED]}, id="a nested tool"),
        pytest.param(
            {"tools": [{"type": "function", "name": "f", "description": None, "parameters": {}}]},
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
            id="a tool with nulls",
        ),
        pytest.param(
            {"tools": [{"type": "web_search"}, TOOL]}, {"tools": [{"type": "web_search"}, NESTED]}, id="other tools"
        ),
        pytest.param({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}, id="no tools"),
        pytest.param({"tool_choice": "required"}, {}, id="a choice of no tools"),
        pytest.param(
            {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
            {"tools": [NESTED], "tool_choice": "required", "parallel_tool_calls": False},
            id="any tool",
        ),
        pytest.param(
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}},
            {"tools": [NESTED], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            id="one tool",
        ),
        pytest.param(
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            {"tools": [NESTED], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            id="one tool, said as chat says it",
        ),
        pytest.param({"text": {"format": {"type": "text"}}}, {}, id="text"),
        pytest.param({"text": {"verbosity": "low"}}, {}, id="no format"),
        pytest.param(
            {"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}, id="json"
        ),
        pytest.param(
            {"text": {"format": {"type": "json_schema", "name": "sky", "schema": WEATHER, "description": None}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "sky", "schema": WEATHER}}},
            id="a schema",
        ),
        pytest.param(
            {"text": {"format": {"type": "json_schema", "name": "sky", "schema": WEATHER, "strict": True}}},
            {"response_format": {"type": "json_schema",
                                 "json_schema": {"name": "sky", "schema": WEATHER, "strict": True}}},
            id="a strict schema",
        ),
        pytest.param(
            {"temperature": 1, "metadata": {"extra_body": '{"top_k": 5, "temperature": 0}'}},
            {"temperature": 0, "top_k": 5},
            id="fields for the engine",
        ),
        pytest.param(
            {"metadata": {"chat_template_kwargs": '{"enable_thinking": false}'}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            id="arguments of the template",
        ),
        pytest.param(
            {"metadata": {"extra_body": '{"chat_template_kwargs": {"a": 1, "b": 1}}',
                          "chat_template_kwargs": '{"b": 2}'}},
            {"chat_template_kwargs": {"a": 1, "b": 2}},
            id="both",
        ),
    ],
)  # fmt: skip
def test_parameters_are_translated(params: dict[str, Any], expected: dict[str, Any]) -> None:
    assert body(**params) == expected


@pytest.mark.parametrize("key", ["extra_body", "chat_template_kwargs"])
@pytest.mark.parametrize("text", ["{top_k: 5}", "[1]", "null", ""])
def test_metadata_that_is_no_json_is_the_rows_fault(key: str, text: str) -> None:
    with pytest.raises(ModelError, match=rf"metadata\.{key}") as caught:
        body(metadata={key: text})
    assert (caught.value.failure.kind, caught.value.failure.retryable) == ("caller", False)


# Back again.


def answer(
    message: dict[str, Any],
    *,
    finish_reason: str | None = "stop",
    dialect: Dialect = PLAIN,
    tokens: Tokens | None = None,
    **fields: Any,
) -> rm.Reply:
    """What a server says, as a reply."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    completion = read_completion(encode({"object": "chat.completion", "choices": [choice], **fields}))
    return to_reply(completion, tokens, dialect, "m")


def kinds(reply: rm.Reply) -> list[tuple[str, str]]:
    """The items of a reply in short; a call by its arguments."""
    return [
        (type(item).__name__, item.arguments if isinstance(item, rm.FunctionCall) else item.text)  # type: ignore[attr-defined]
        for item in reply.items
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": "Sun."}, [("Message", "Sun.")]),
        ({"content": [{"type": "text", "text": "S"}, {"type": "text", "text": "un."}]}, [("Message", "Sun.")]),
        ({"content": ""}, [("Message", "")]),
        ({"content": None}, [("Message", "")]),
        ({}, [("Message", "")]),
        ({"content": None, "refusal": "I would rather not."}, [("Message", "I would rather not.")]),
        ({"content": "Sun.", "reasoning_content": "hm"}, [("Reasoning", "hm"), ("Message", "Sun.")]),
        ({"content": "Sun.", "reasoning": "hm"}, [("Reasoning", "hm"), ("Message", "Sun.")]),
        ({"content": None, "reasoning_content": "hm"}, [("Reasoning", "hm")]),
        ({"content": "Sun.", "tool_calls": []}, [("Message", "Sun.")]),
        ({"content": "Sun.", "tool_calls": None}, [("Message", "Sun.")]),
        ({"content": None, "tool_calls": [tool_call("a", "{}")]}, [("FunctionCall", "{}")]),
        ({"content": "", "tool_calls": [tool_call("a", "{oops")]}, [("FunctionCall", "{oops")]),
        (
            {"content": "I look.", "reasoning": "hm", "tool_calls": [tool_call("a", "{}"), tool_call("b", '{"c": 1}')]},
            [("Reasoning", "hm"), ("Message", "I look."), ("FunctionCall", "{}"), ("FunctionCall", '{"c": 1}')],
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": {"city": "Rome"}}}, {"function": {"name": "f"}}]},
            [("FunctionCall", '{"city":"Rome"}'), ("FunctionCall", "{}")],
        ),
    ],
)
def test_a_message_becomes_items(message: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert kinds(answer(message)) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<think>hm</think>\n\nSun.", [("Reasoning", "hm"), ("Message", "Sun.")]),
        ("hm</think>Sun.", [("Reasoning", "hm"), ("Message", "Sun.")]),
        ("<think>hm</think>", [("Reasoning", "hm")]),
        ("<think></think>Sun.", [("Message", "Sun.")]),
        ("<think>hm, and it was cut", [("Message", "<think>hm, and it was cut")]),
        ("Sun.", [("Message", "Sun.")]),
        ("<think>a</think>b</think>c", [("Reasoning", "a"), ("Message", "b</think>c")]),
    ],
)
def test_think_tags_are_reasoning_where_the_server_has_no_parser(content: str, expected: list[Any]) -> None:
    assert kinds(answer({"content": content}, dialect=THINKS)) == expected
    assert kinds(answer({"content": content})) == [("Message", content)]


def test_a_parser_of_the_server_goes_before_think_tags() -> None:
    message = {"content": "say </think> twice", "reasoning_content": "hm"}
    assert kinds(answer(message, dialect=THINKS)) == [("Reasoning", "hm"), ("Message", "say </think> twice")]


def test_items_are_whole_as_the_responses_api_writes_them() -> None:
    reply = answer({"content": "Sun.", "reasoning": "hm", "tool_calls": [tool_call("a", "{}")]}, id="cmpl-1", created=5)
    reasoning, message, call = (json.loads(bytes(item.json)) for item in reply.items)
    ids = [item.pop("id") for item in (reasoning, message, call)]
    assert [id.partition("_")[0] for id in ids] == ["rs", "msg", "fc"]
    assert reasoning == {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert message == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Sun.", "annotations": []}],
    }
    assert call == {
        "type": "function_call",
        "status": "completed",
        "name": "get_weather",
        "arguments": "{}",
        "call_id": "a",
    }
    assert {key: json.loads(bytes(value)) for key, value in reply.fields.items()} == {
        "id": "resp_cmpl-1",
        "created_at": 5,
        "model": "m",
        "status": "completed",
        "incomplete_details": None,
    }


def test_calls_without_ids_get_their_own() -> None:
    nameless = {"function": {"name": "f", "arguments": "{}"}}
    first, second = answer({"tool_calls": [nameless, {**nameless, "id": ""}]}).calls
    assert first.call_id
    assert second.call_id
    assert first.call_id != second.call_id


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("stop", None, None),
        ("tool_calls", None, None),
        (None, None, None),
        ("something new", None, None),
        ("length", rm.Stop.LENGTH, "max_output_tokens"),
        ("content_filter", rm.Stop.CONTENT_FILTER, "content_filter"),
    ],
)
def test_why_the_server_stopped(finish: str | None, stop: rm.Stop | None, reason: str | None) -> None:
    reply = answer({"content": "Su"}, finish_reason=finish)
    assert reply.stop == stop
    assert reply.fields["status"] == Raw(b'"incomplete"' if stop else b'"completed"')
    assert json.loads(bytes(reply.fields["incomplete_details"])) == ({"reason": reason} if reason else None)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}, rm.Usage(9, 3)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            rm.Usage(9, 3, 8, 2),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
                "completion_tokens_details": {"reasoning_tokens": None},
            },
            rm.Usage(9, 0),
        ),
    ],
)
def test_usage_is_counted_by_the_server(usage: dict[str, Any], expected: rm.Usage) -> None:
    assert answer({"content": "Sun."}, usage=usage).usage == expected


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 9}])
def test_usage_is_estimated_where_the_server_does_not_count(usage: dict[str, Any] | None) -> None:
    counted = answer({"content": "Sun."}, usage=usage).usage
    assert counted.estimated
    assert counted.output_tokens > 0


def test_tokens_lie_on_the_last_item() -> None:
    reply = answer({"content": "I look.", "tool_calls": [tool_call("a", "{}")]}, tokens=TOKENS)
    assert [item.tokens for item in reply.items] == [None, TOKENS]


def test_a_model_that_said_nothing_still_sampled() -> None:
    (only,) = answer({"content": None}, tokens=TOKENS).items
    assert only.tokens == TOKENS


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"null",
        b"{}",
        b'{"choices": null}',
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": "hi"}]}',
        b'{"choices": [{"message": {"tool_calls": [{}]}}]}',
        b'{"choices": [{"message": {"content": "\xff"}}]}',
        b'{"choices": ' + b"[" * 50_000,
        b'{"output": [], "object": "response"}',
        b"<html>please log in</html>",
    ],
)
def test_what_is_no_completion_is_malformed(said: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        read_completion(said)
    assert (caught.value.failure.kind, caught.value.failure.retryable) == ("malformed", True)


# Nothing is lost.

TEXT = st.text(max_size=20)
MINE = st.one_of(
    TEXT.map(rm.assistant),
    TEXT.map(thought),
    st.builds(lambda call_id, city: rm.call("get_weather", call_id, city=city), TEXT, TEXT),
)
ITEMS = st.lists(
    st.one_of(
        st.builds(said, st.sampled_from(["user", "system", "developer"]), TEXT),
        st.builds(lambda texts: said("user", [{"type": "input_text", "text": text} for text in texts]), st.lists(TEXT)),
        MINE,
        MINE.map(lambda item: item.with_tokens(TOKENS)),
        st.builds(output, TEXT, TEXT),
    )
)


@given(items=ITEMS, tokens=st.booleans())
def test_no_text_call_or_output_is_lost_on_the_way(items: list[rm.Item], tokens: bool) -> None:
    asked = messages(*items, dialect=Dialect(tokens=tokens))

    def those(kind: type[Any]) -> list[Any]:
        return [item for item in items if isinstance(item, kind)]

    def mine(item: rm.Message) -> bool:
        return item.role == "assistant"

    spoken = those(rm.Message)
    theirs = [message["content"] for message in asked if message["role"] in ("user", "system")]
    assert theirs == [item.text for item in spoken if not mine(item)]
    ours = [message for message in asked if message["role"] == "assistant"]
    assert "".join(message["content"] for message in ours) == "".join(item.text for item in spoken if mine(item))
    thoughts = "".join(message.get("reasoning_content", "") for message in ours)
    assert thoughts == "".join(item.text for item in those(rm.Reasoning))
    calls = [call for message in ours for call in message.get("tool_calls", ())]
    assert calls == [tool_call(item.call_id, item.arguments) for item in those(rm.FunctionCall)]
    outputs = [(message["tool_call_id"], message["content"]) for message in asked if message["role"] == "tool"]
    assert outputs == [(item.call_id, item.text) for item in those(rm.FunctionCallOutput)]
    sent = sum("generation_token_ids" in message for message in ours)
    assert sent == (sum(item.tokens is not None for item in items) if tokens else 0)


@given(
    content=TEXT,
    reasoning=TEXT,
    calls=st.lists(st.builds(tool_call, st.text(min_size=1, max_size=5), TEXT), max_size=3),
)
def test_what_a_server_said_goes_back_to_it_as_it_was(content: str, reasoning: str, calls: list[Any]) -> None:
    reply = answer({"content": content, "reasoning_content": reasoning, "tool_calls": calls})
    (back,) = messages(*reply.items)
    assert back["content"] == content
    assert back.get("reasoning_content", "") == reasoning
    assert back.get("tool_calls", []) == calls


def test_a_message_is_encoded_once_however_many_turns_follow() -> None:
    first = [rm.user("a"), *rm.Reply((rm.call("f", "1", x=1), rm.call("f", "2", x=2))).items]
    later = [*first, rm.FunctionCallOutput(call_id="1", output="one"), rm.FunctionCallOutput(call_id="2", output="two")]
    messages = to_request(first, {}, Dialect())["messages"]
    again = to_request(later, {}, Dialect())["messages"]
    assert all(one is other for one, other in zip(messages, again, strict=False))
    assert len(again) == 4
    # Another dialect, or other items before the last, make another message.
    assert to_request(first, {}, Dialect(think_tags=True))["messages"][0] is not messages[0]
    alone = to_request([first[0], first[2]], {}, Dialect())["messages"]
    assert len(decode(alone[1])["tool_calls"]) == 1
