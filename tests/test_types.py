"""Records: what is read is kept whole, what is made has the wire's shape, and a task is known by its content."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

import rollmill as rm
from rollmill.types import (
    AgentRef,
    Failure,
    OtherItem,
    Part,
    Response,
    Slot,
    Tokens,
    Trajectory,
    Usage,
    encode,
    read_item,
    read_task,
)


def row(**fields: Any) -> bytes:
    return json.dumps({"responses_create_params": {"input": "hello"}, **fields}).encode()


def read(**fields: Any) -> rm.Task:
    return read_task(row(**fields), rm.Task)


# Items.

WRITTEN = [
    b'{"type":"message","role":"user","content":"hi","unknown":{"a":[1,2]}}',
    b'{ "role" : "developer", "content" : [ {"type":"input_text","text":"hi","cache":true} ] }',
    b'{"id":"msg_1","type":"message","role":"assistant","status":"completed",'
    b'"content":[{"type":"output_text","text":"3","annotations":[],"logprobs":null},{"type":"refusal","refusal":"no"}]}',
    b'{"type":"function_call","name":"take","arguments":"{\\"item\\": \\"tea\\"}","call_id":"c1","id":null,"n":1e3}',
    b'{"type":"function_call_output","call_id":"c1","output":"done","at":0.1000}',
    b'{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"xyz"}',
    b'{"type":"web_search_call","action":{"query":"\\u00fc"},"status":"completed"}',
    b'{"type":"item_reference","id":"msg_9"}',
]


@pytest.mark.parametrize("written", WRITTEN)
def test_an_item_is_written_as_it_was_read_byte_for_byte(written: bytes) -> None:
    assert bytes(read_item(written).json) == written
    assert encode([read_item(written).json]) == b"[" + written + b"]"


@pytest.mark.parametrize("written", WRITTEN)
def test_an_item_outlives_the_body_that_it_was_read_from(written: bytes) -> None:
    body = bytearray(b"[" + written + b"]")
    (item,) = [read_item(raw) for raw in msgspec.json.decode(body, type=list[Raw])]
    body[:] = b" " * len(body)
    assert bytes(item.json) == written


def test_the_kinds_that_are_known_have_typed_fields() -> None:
    _, developer, answer, call, output, reasoning, search, _ = map(read_item, WRITTEN)
    assert isinstance(developer, rm.Message)
    assert (developer.role, developer.text) == ("developer", "hi")
    assert isinstance(answer, rm.Message)
    assert (answer.id, answer.text) == ("msg_1", "3no")
    assert isinstance(call, rm.FunctionCall)
    assert (call.name, json.loads(call.arguments)) == ("take", {"item": "tea"})
    assert isinstance(output, rm.FunctionCallOutput)
    assert output.text == "done"
    assert isinstance(reasoning, rm.Reasoning)
    assert reasoning.text == "hm"
    assert isinstance(search, OtherItem)
    assert search.type == "web_search_call"


def test_an_item_without_a_type_is_a_message() -> None:
    item = read_item(b'{"role":"user","content":"hi"}')
    assert item == rm.user("hi")
    assert bytes(item.json) == b'{"role":"user","content":"hi"}'


@pytest.mark.parametrize(
    ("written", "what"),
    [
        (b'{"type":"message","content":"hi"}', "missing required field `role`"),
        (b'{"type":"function_call","name":"f"}', "missing required field `call_id`"),
        (b'{"role":5}', r"Expected `str`, got `int` - at `\$.role`"),
        (b'"hi"', "Expected `object`"),
    ],
)
def test_an_item_of_a_known_kind_with_wrong_fields_says_which(written: bytes, what: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=what):
        read_item(written)


def test_items_made_in_python_can_be_read_back() -> None:
    output = rm.FunctionCallOutput(call_id="c1", output=(Part("input_text", "two"), Part("input_text", " parts")))
    made = [rm.user("hi"), rm.assistant("3", id="msg_1"), rm.call("take", "c1", item="tea"), output, rm.Reasoning()]
    again = [read_item(bytes(item.json)) for item in made]
    assert again == made
    assert output.text == "two parts"


def test_an_assistant_message_has_the_shape_of_the_responses_api() -> None:
    assert json.loads(bytes(rm.assistant("3").json)) == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "3", "annotations": []}],
    }


def test_a_call_writes_its_arguments_as_json_text() -> None:
    call = rm.call("take", "c1", item="tea", count=2)
    assert json.loads(bytes(call.json)) == {
        "type": "function_call",
        "name": "take",
        "arguments": '{"item":"tea","count":2}',
        "call_id": "c1",
    }


def test_an_item_is_encoded_once() -> None:
    item = rm.user("hi")
    assert item.json is item.json


def test_tokens_ride_on_an_item_and_its_other_fields_stay() -> None:
    tokens = Tokens([1, 2], [3], [-0.25])
    item = read_item(WRITTEN[2])
    with_tokens = item.with_tokens(tokens)
    assert item.tokens is None
    assert with_tokens.tokens == tokens
    assert read_item(bytes(with_tokens.json)).tokens == tokens
    assert json.loads(bytes(with_tokens.json)) == json.loads(WRITTEN[2]) | msgspec.to_builtins(tokens)


def test_a_text_that_talks_of_tokens_has_none() -> None:
    assert rm.user('{"generation_token_ids": [1]}').tokens is None
    assert read_item(b'{"role":"user","content":"hi","engine":{"generation_token_ids":[1]}}').tokens is None


def test_new_tokens_replace_the_old_ones() -> None:
    item = rm.assistant("3").with_tokens(Tokens([1], [2], [0.0])).with_tokens(Tokens([5], [6], [-1.0]))
    assert item.tokens == Tokens([5], [6], [-1.0])


# Usage, replies, responses.


def test_usage_adds_up() -> None:
    assert Usage(10, 5, 2, 1) + Usage(1, 2, 3, 4) == Usage(11, 7, 5, 5)
    assert Usage(10, 5).total_tokens == 15
    assert (Usage(1, 1) + Usage(1, 1, estimated=True)).estimated


def test_usage_on_the_wire_is_the_responses_api_s() -> None:
    assert Usage(10, 5, 2, 1).wire() == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 15,
    }
    assert Usage(1, 1, estimated=True).wire()["estimated"] is True


def test_an_estimate_counts_both_sides_and_says_that_it_is_one() -> None:
    usage = Usage.estimate([rm.assistant("x" * 400)], [rm.user("y" * 800)])
    assert usage.estimated
    assert usage.input_tokens > usage.output_tokens > 100


def test_a_reply_has_the_calls_and_the_text() -> None:
    items = (rm.Reasoning(), rm.assistant("first"), rm.call("a", "1"), rm.assistant("last"), rm.call("b", "2"))
    reply = rm.Reply(items)
    assert [call.name for call in reply.calls] == ["a", "b"]
    assert reply.text == "last"
    assert rm.Reply(()).text == ""


def test_a_response_on_the_wire_has_the_text_under_every_name_that_scripts_read() -> None:
    items = (rm.call("take", "c1"), rm.FunctionCallOutput(call_id="c1", output="ok"), rm.assistant("done"))
    response = Response(items, Usage(10, 5), {"id": Raw(b'"resp_1"'), "model": Raw(b'"m"')})
    wire = json.loads(encode(response.wire()))
    assert wire["object"] == "response"
    assert (wire["id"], wire["model"]) == ("resp_1", "m")
    assert wire["output_text"] == wire["content"] == response.output_text == response.content == "done"
    assert [item["type"] for item in wire["output"]] == ["function_call", "function_call_output", "message"]
    assert wire["usage"]["total_tokens"] == 15
    assert response["usage"]["total_tokens"] == 15
    assert response["output"][0]["name"] == "take"


def test_a_response_of_nothing_has_an_empty_text() -> None:
    assert json.loads(encode(Response(()).wire()))["output_text"] == ""


def test_a_trajectory_collects_turns_calls_usage_and_time() -> None:
    trajectory = Trajectory([rm.user("hi")])
    trajectory.add_reply(rm.Reply((rm.call("take", "c1"),), Usage(1, 2), fields={"id": Raw(b'"resp_1"')}))
    trajectory.add_output(rm.FunctionCallOutput(call_id="c1", output="ok"))
    trajectory.add_user("go on")
    trajectory.add_reply(rm.Reply((rm.assistant("done"),), Usage(3, 4), fields={"id": Raw(b'"resp_2"')}))
    for _ in range(2):
        with trajectory.timed("tools"):
            pass
    assert (trajectory.turns, trajectory.tool_calls, trajectory.answer) == (2, 1, "done")
    assert trajectory.usage == Usage(4, 6)
    assert set(trajectory.seconds) == {"tools"}
    assert trajectory.response()["id"] == "resp_2"
    assert trajectory.response().output == tuple(trajectory.items)


def test_trajectories_have_ids_of_their_own() -> None:
    assert Trajectory().id != Trajectory().id


# Rewards, slots.


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_is_a_finite_number(value: float) -> None:
    with pytest.raises(ValueError, match=r"reward is .*; a reward is a finite number"):
        rm.Reward(value)
    with pytest.raises(ValueError, match="speed is"):
        rm.Reward(1.0, {"speed": value})
    with pytest.raises(ValueError, match="words is"):
        rm.Reward(1.0, metrics={"words": value})


def test_a_truth_value_becomes_a_number() -> None:
    assert json.loads(encode(rm.Reward(True, {"right": True}, {"fast": False}))) == {
        "value": 1.0,
        "parts": {"right": 1.0},
        "metrics": {"fast": 0.0},
        "notes": {},
    }


def test_a_reward_s_notes_are_json() -> None:
    assert rm.Reward(1.0, notes={"extracted": ["A"]}).notes == {"extracted": ["A"]}
    with pytest.raises(TypeError, match="object"):
        rm.Reward(1.0, notes={"why": object()})


def test_a_slot_s_indices_do_not_identify_it() -> None:
    assert Slot("a", "t", 1, 2, task_index=3).key == Slot("a", "t", 1, 2, rollout_index=4).key
    assert len({Slot("a", "t", *place).key for place in [(0, 0), (0, 1), (1, 0)]}) == 3


def test_a_failure_says_nothing_that_is_not_so() -> None:
    assert json.loads(encode(Failure("tool", "error", "broken"))) == {
        "where": "tool",
        "kind": "error",
        "detail": "broken",
    }


# Tasks.


class Order(rm.Task):
    want: dict[str, int]
    limit: int = 3


def test_fields_that_nobody_knows_survive() -> None:
    task = read(id="t1", nested={"b": 1, "a": [None, 1.50]}, agent_ref={"name": "x", "type": "responses_api_agents"})
    assert task["id"] == "t1"
    assert task["nested"] == {"a": [None, 1.5], "b": 1}
    assert task.get("id") == "t1"
    assert task.get("missing") is None
    assert task.get("missing", 7) == 7
    assert task.agent_ref == AgentRef("x", "responses_api_agents")
    with pytest.raises(KeyError):
        task["missing"]


def test_a_field_keeps_its_own_bytes() -> None:
    number = b'{ "a" :1.50,"big":123456789012345678901}'
    task = read_task(b'{"responses_create_params":{"input":"x"}, "n": ' + number + b"}", rm.Task)
    assert bytes(task.fields["n"]) == number


def test_a_subclass_names_the_fields_that_it_reads() -> None:
    task = read_task(row(want={"tea": 2}, note="kept"), Order)
    assert (task.want, task.limit, task["note"]) == ({"tea": 2}, 3, "kept")


@pytest.mark.parametrize(
    ("given_row", "what"),
    [
        (row(), "missing required field `want`"),
        (row(want={"tea": "two"}), r"Expected `int`, got `str` - at `\$.want\[\.\.\.\]`"),
        (b'{"want":{}}', "the row has no `responses_create_params`"),
        (b'{"want":{},"responses_create_params":{}}', "`responses_create_params`: .*missing required field `input`"),
        (b'{"want":{},"responses_create_params":{"input":3}}', r"`responses_create_params`: .* at `\$.input`"),
        (b'{"want":{},"responses_create_params":{"input":[{"role":5}]}}', "`responses_create_params`: .*role"),
        (b'{"want":{},"responses_create_params":null}', "`responses_create_params`"),
        (b"[]", "Expected `object`, got `array`"),
    ],
)
def test_a_row_with_a_wrong_field_says_which(given_row: bytes, what: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=what):
        read_task(given_row, Order)


def test_a_prompt_is_a_text_or_items() -> None:
    assert read().prompt == (rm.user("hello"),)
    items = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    task = read(responses_create_params={"input": items})
    assert [bytes(item.json) for item in task.prompt] == [json.dumps(item).encode() for item in items]
    assert task.prompt is task.prompt


def test_params_are_what_is_asked_besides_the_conversation() -> None:
    task = read(responses_create_params={"input": "x", "temperature": 0.5, "tools": []})
    assert {key: json.loads(bytes(value)) for key, value in task.params.items()} == {"temperature": 0.5, "tools": []}


def test_a_task_can_be_made_in_python() -> None:
    task = Order.of("buy tea", want={"tea": 2})
    assert task.prompt == (rm.user("buy tea"),)
    assert task.want == task["want"] == {"tea": 2}
    assert read_task(encode(task.fields), Order) == task
    assert read_task(encode(task.fields), Order).identity == task.identity
    assert rm.Task.of([rm.user("a"), rm.assistant("b")]).prompt == (rm.user("a"), rm.assistant("b"))


def test_a_task_made_in_python_is_the_task_of_the_same_row() -> None:
    of_row = read(responses_create_params={"input": [{"role": "user", "content": "hello"}]}, want={"tea": 2})
    assert Order.of("hello", want={"tea": 2}).identity == of_row.identity


def test_a_prompt_of_anything_but_items_is_refused() -> None:
    with pytest.raises(AttributeError):
        rm.Task.of([{"role": "user", "content": "hi"}])  # type: ignore[list-item]


def test_identity_is_the_content_s_however_it_is_written() -> None:
    task = read(a=1, b={"x": 1, "y": [2]})
    shuffled = b'{"b": {"y":[ 2 ],"x":1},  "a":1, "responses_create_params":{"input":"hello"}}'
    assert read_task(shuffled, rm.Task).identity == task.identity
    assert read(a=1, b={"x": 1, "y": [2]}, _ng_task_index=7, _ng_rollout_index=0).identity == task.identity


@pytest.mark.parametrize(
    "other",
    [
        {"a": 2},
        {"a": "1"},
        {"a": 1, "c": None},
        {},
        {"a": 1, "responses_create_params": {"input": "hello "}},
        {"a": 1, "responses_create_params": {"input": "hello", "temperature": 1.0}},
    ],
)
def test_identity_is_another_s_where_a_value_differs(other: dict[str, Any]) -> None:
    assert read(**other).identity != read(a=1).identity


def test_the_order_of_a_list_is_content() -> None:
    assert read(a=[1, 2]).identity != read(a=[2, 1]).identity


def test_overrides_win_at_the_top_and_do_not_change_who_a_task_is() -> None:
    params = {"input": "hello", "reasoning": {"effort": "low", "summary": "auto"}, "temperature": 0.5}
    task = read(responses_create_params=params, note="kept")
    hot = task.with_params({"temperature": 1.0, "reasoning": {"effort": "high"}})
    assert {key: json.loads(bytes(value)) for key, value in hot.params.items()} == {
        "reasoning": {"effort": "high"},
        "temperature": 1.0,
    }
    assert hot.identity == task.identity
    assert hot["note"] == "kept"
    assert hot["responses_create_params"]["temperature"] == 1.0
    assert hot.prompt == task.prompt
    assert task["responses_create_params"] == params
    assert task.with_params({}) is task


def test_overrides_that_come_first_do_not_change_identity_either() -> None:
    assert read(a=1).with_params({"temperature": 1.0}).identity == read(a=1).identity


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ROWS = st.dictionaries(st.text(), JSON, max_size=6).map(lambda fields: fields | {"agent_ref": None})


@given(ROWS, st.booleans(), st.sampled_from(["hi", [], [{"role": "user", "content": "hi", "x": [1]}]]))
def test_every_field_of_any_row_is_kept(fields: dict[str, Any], ascii_only: bool, prompt: Any) -> None:
    fields = fields | {"responses_create_params": {"input": prompt, "unknown": fields}}
    written = json.dumps(fields, ensure_ascii=ascii_only).encode()
    task = read_task(written, rm.Task)
    assert {key: json.loads(bytes(value)) for key, value in task.fields.items()} == fields
    assert json.loads(encode(task.fields)) == fields
    assert len(task.prompt) == (1 if prompt else 0)


@given(ROWS)
def test_any_row_keeps_its_identity_when_it_is_written_again(fields: dict[str, Any]) -> None:
    task = read(**fields)
    again = {key: fields[key] for key in reversed(fields)}
    assert read_task(encode(task.fields), rm.Task).identity == task.identity
    assert read(**again).identity == task.identity


def test_the_parts_of_a_reward_add_up() -> None:
    rm.Reward(0.3, {"a": 0.1, "b": 0.2})
    with pytest.raises(ValueError, match=r"parts add up to 0\.5"):
        rm.Reward(1.0, {"a": 0.5})


def test_a_field_of_a_task_may_not_hide_what_a_task_has() -> None:
    with pytest.raises(TypeError, match=r'a task has `prompt` already.*name="prompt"'):

        class Hiding(rm.Task):
            prompt: str

    class Renamed(rm.Task):
        question: str = msgspec.field(name="prompt")

    class Narrowed(Renamed):
        question: str = msgspec.field(name="prompt", default="none")

    row = b'{"responses_create_params": {"input": "x"}, "prompt": "y"}'
    assert read_task(row, Renamed).question == read_task(row, Narrowed).question == "y"


def test_a_declared_field_that_the_row_leaves_out_has_its_default() -> None:
    class Graded(rm.Task):
        mode: str = "strict"

    task = read_task(b'{"responses_create_params": {"input": "x"}}', Graded)
    assert task["mode"] == task.get("mode") == "strict"
    assert task.get("other", 3) == 3
    with pytest.raises(KeyError):
        task["other"]
