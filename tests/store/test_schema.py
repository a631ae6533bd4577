import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollmill as rm
from rollmill.rollout import Deferred, at_once
from rollmill.store.schema import entry_of, read_row, read_summary, stored_entry, write_row
from rollmill.types import OURS, encode, read_task

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class Echo(rm.Environment[rm.Task]):
    verification = "stateless"

    def verify(self, task, response):
        return {"reward": 0.5, "length": len(response.output_text), "said": response.output_text}


async def played(row: dict, environment=Echo, model=None) -> rm.Rollout:
    task = read_task(encode(row), environment.task_type)
    slot = rm.Slot("echo_agent", task.identity, 0, 1, 7, 1)
    return await rm.play(task, environment, rm.ToolAgent(), model or rm.Scripted("hello"), slot=slot)


def row_of(rollout: rm.Rollout) -> dict:
    return msgspec.json.decode(write_row(rollout, "run-1"))


async def test_a_row_has_the_fields_that_scripts_and_trainers_read():
    row = row_of(await played({"responses_create_params": {"input": "hi"}, "uuid": "a"}))
    assert row["uuid"] == "a"
    assert row["reward"] == 0.5
    assert row["length"] == 5
    assert row["said"] == "hello"
    assert row["response"]["output"][0]["content"][0]["text"] == "hello"
    assert row["response"]["output_text"] == row["response"]["content"] == "hello"
    assert row["usage"]["total_tokens"] == row["response"]["usage"]["total_tokens"] > 0
    assert row["agent_ref"] == {"type": "responses_api_agents", "name": "echo_agent"}
    assert (row["_ng_task_index"], row["_ng_rollout_index"]) == (7, 1)
    assert row["rollmill"]["stop"] == "done"


@given(extra=st.dictionaries(st.text().filter(lambda name: name not in (*OURS, "responses_create_params")), JSON))
async def test_every_field_of_an_input_row_survives(extra):
    row = row_of(await played({"responses_create_params": {"input": "hi"}, **extra}))
    assert {name: row[name] for name in extra} == extra


async def test_numbers_keep_their_spelling():
    task = read_task(b'{"responses_create_params":{"input":"hi"},"price":1.50,"big":12345678901234567890}', rm.Task)
    rollout = await rm.play(task, Echo, rm.ToolAgent(), rm.Scripted("x"))
    row = write_row(rollout, "run-1")
    assert b'"price":1.50' in row
    assert b'"big":12345678901234567890' in row


async def test_a_metric_never_writes_over_a_field_of_the_input():
    rollout = await played({"responses_create_params": {"input": "hi"}, "length": "mine", "said": 3})
    row = row_of(rollout)
    assert (row["length"], row["said"]) == ("mine", 3)
    assert row["rollmill"]["metrics"]["length"] == 5
    again = read_row(write_row(rollout, "r"), rm.Task)
    assert again.task["length"] == "mine"
    assert again.reward.metrics["length"] == 5


async def test_overrides_are_in_the_row_and_not_in_the_identity():
    task = read_task(b'{"responses_create_params":{"input":"hi","temperature":1.0}}', rm.Task)
    rollout = await rm.play(task.with_params({"temperature": 0.2}), Echo, rm.ToolAgent(), rm.Scripted("x"))
    assert row_of(rollout)["responses_create_params"]["temperature"] == 0.2
    assert row_of(rollout)["rollmill"]["slot"]["task"] == task.identity


async def test_a_row_read_back_is_the_rollout():
    rollout = await played({"responses_create_params": {"input": "hi", "tools": []}, "uuid": "a", "nested": {"b": [1]}})
    again = read_row(write_row(rollout, "r"), rm.Task)
    assert again.slot == rollout.slot
    assert again.reward == rollout.reward
    assert again.task.identity == rollout.task.identity
    assert again.task.prompt == rollout.task.prompt
    assert set(again.task.fields) == {"responses_create_params", "uuid", "nested"}
    assert again.response.output == rollout.response.output
    assert again.response.usage == rollout.response.usage
    assert (again.stop, again.turns, again.model) == (rollout.stop, rollout.turns, rollout.model)
    assert write_row(again, "r") == write_row(read_row(write_row(again, "r"), rm.Task), "r")


async def test_a_stored_rollout_is_verified_again_from_its_row():
    stored = read_row(write_row(await played({"responses_create_params": {"input": "hi"}}), "r"), rm.Task)
    assert await rm.verify_again(stored, Echo) == stored.reward


async def test_a_row_that_was_a_rollout_can_be_a_task_again():
    first = row_of(await played({"responses_create_params": {"input": "hi"}, "uuid": "a"}))
    second = row_of(await played(first, model=rm.Scripted("other")))
    assert second["response"]["output_text"] == "other"
    assert second["uuid"] == "a"


async def test_unknown_items_and_fields_of_a_reply_are_stored_as_they_came():
    from rollmill.types import read_item

    raw = b'{"type":"web_search_call","id":"w","action":{"q":"x"},"vendor":[1.0]}'
    message = (
        b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[],"x":1}]}'
    )
    rollout = await played(
        {"responses_create_params": {"input": "hi"}}, model=rm.Scripted([read_item(raw), read_item(message)])
    )
    line = write_row(rollout, "r")
    assert raw in line
    assert message in line


async def test_a_row_is_one_line_whatever_was_passed_through():
    item = rm.read_item(b'{\n "type": "message",\r\n "role": "assistant", "content": "two\\nlines", "n": 1.50\n}')
    task = read_task(b'{"responses_create_params":\n {"input": "hi"}, "price":\n 1.50}', rm.Task)
    rollout = await rm.play(task, Echo, rm.ToolAgent(), rm.Scripted(item))
    row = write_row(rollout, "r")
    assert b"\n" not in row
    assert b"\r" not in row
    assert row.count(b"1.50") == 2
    assert read_row(row, rm.Task).response.output_text == "two\nlines"


def test_a_summary_skips_what_is_large_and_refuses_what_is_not_ours():
    with pytest.raises(msgspec.DecodeError):
        read_summary(b'{"reward": 1}')
    with pytest.raises(msgspec.DecodeError):
        read_summary(b'{"reward": ')


async def test_a_rollout_without_a_reward_has_no_row():
    class Broken(rm.Environment[rm.Task]):
        def verify(self, task, response):
            raise RuntimeError("no")

    with pytest.raises(ValueError, match="no row"):
        write_row(await played({"responses_create_params": {"input": "hi"}}, environment=Broken), "r")


class Judged(rm.Environment[rm.Task]):
    def verify(self, task, response):
        return {"reward": 0.5, "length": 3, "task_name": "the verifier's"}


async def played_by(row: dict, judge=at_once, environment=Echo) -> rm.Rollout:
    task = read_task(encode({"responses_create_params": {"input": "hi"}, **row}), rm.Task)
    slot = rm.Slot("agent", task.identity, 1, 2, 3, 4)
    return await rm.play(task, environment, rm.ToolAgent(), rm.Scripted("hello"), slot=slot, judge=judge)


@pytest.mark.parametrize("environment", [Echo, Judged])
@pytest.mark.parametrize(
    "row", [{}, {"task_name": "sums", "dataset": "d"}, {"task_name": 3, "verification_skipped": "?"}]
)
@pytest.mark.parametrize("judge", [at_once, Deferred(0.25)], ids=["verified", "deferred"])
async def test_what_counting_needs_of_a_stored_row_is_what_it_needed_of_the_rollout(environment, row, judge):
    rollout = await played_by(row, judge, environment)
    now = entry_of(rollout, "run-1")
    assert stored_entry(write_row(rollout, "run-1")) == now
    assert (now.reward is None) == (judge is not at_once)


async def test_a_row_whose_verification_was_put_off_can_be_played_and_verified():
    first = await played_by({}, Deferred())
    row = write_row(first, "r")
    assert msgspec.json.decode(row)["verification_skipped"] is True
    again = await played_by(msgspec.json.decode(row))
    assert "verification_skipped" not in msgspec.json.decode(write_row(again, "r"))
    assert stored_entry(write_row(again, "r")).reward == 0.5
