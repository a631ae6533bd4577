"""The scripted model, and sampling said once for all tasks."""

import json

import pytest

import rollmill as rm
from rollmill.types import encode


def turn(number: int, *said: str) -> rm.Conversation:
    return rm.Conversation([rm.user(text) for text in said or ("hi",)], turn=number)


async def test_a_script_has_a_line_for_each_turn_and_the_last_one_repeats() -> None:
    model = rm.Scripted("one", "two")
    assert [(await model.reply(turn(number))).text for number in range(4)] == ["one", "two", "two", "two"]


async def test_conversations_do_not_disturb_each_other() -> None:
    model = rm.Scripted("one", "two")
    assert (await model.reply(turn(1))).text == "two"
    assert (await model.reply(turn(0))).text == "one"


async def test_without_a_script_it_says_ok() -> None:
    assert (await rm.Scripted().reply(turn(0))).text == "ok"


async def test_a_line_may_be_an_item_or_several() -> None:
    model = rm.Scripted(rm.call("take", item="tea"), [rm.Reasoning(), rm.assistant("done")])
    assert [call.name for call in (await model.reply(turn(0))).calls] == ["take"]
    assert [type(item) for item in (await model.reply(turn(1))).items] == [rm.Reasoning, rm.Message]


async def test_a_line_may_be_a_function_of_the_conversation() -> None:
    def shout(conversation: rm.Conversation) -> str:
        last = conversation.items[-1]
        assert isinstance(last, rm.Message)
        return last.text.upper()

    assert (await rm.Scripted(shout).reply(turn(0, "hello"))).text == "HELLO"


async def test_a_function_may_answer_with_a_call() -> None:
    model = rm.Scripted(lambda conversation: rm.call("take", f"call_{conversation.turn}"))
    assert (await model.reply(turn(3))).calls[0].call_id == "call_3"


async def test_a_whole_reply_is_said_as_it_is() -> None:
    reply = rm.Reply((rm.assistant("cut"),), rm.Usage(7, 8), rm.Stop.LENGTH)
    said = await rm.Scripted(reply).reply(turn(0))
    assert (said.items, said.usage, said.stop) == (reply.items, rm.Usage(7, 8), rm.Stop.LENGTH)


async def test_usage_that_nobody_counted_is_estimated() -> None:
    said = await rm.Scripted("x" * 400).reply(turn(0, "y" * 800))
    assert said.usage.estimated
    assert said.usage.input_tokens > said.usage.output_tokens > 100


async def test_a_scripted_reply_names_its_model() -> None:
    said = await rm.Scripted("hi", name="parrot").reply(turn(2))
    fields = {name: json.loads(bytes(value)) for name, value in said.fields.items()}
    assert fields == {"id": "resp_2", "model": "parrot", "status": "completed"}


def test_sampling_overrides_what_it_names_and_nothing_else() -> None:
    assert rm.Sampling().overrides() == {}
    assert rm.Sampling(temperature=0.0, max_output_tokens=512).overrides() == {
        "temperature": 0.0,
        "max_output_tokens": 512,
    }


def test_sampling_takes_any_other_parameter() -> None:
    sampling = rm.Sampling(top_p=0.9, reasoning={"effort": "high"}, other={"seed": 3, "metadata": {"a": "b"}})
    assert sampling.overrides() == {
        "top_p": 0.9,
        "reasoning": {"effort": "high"},
        "seed": 3,
        "metadata": {"a": "b"},
    }


def test_sampling_wins_over_the_row() -> None:
    row = {"responses_create_params": {"input": "hi", "temperature": 0.1, "top_p": 0.5}}
    task = rm.read_task(encode(row), rm.Task).with_params(rm.Sampling(temperature=1.0).overrides())
    assert {name: json.loads(bytes(value)) for name, value in task.params.items()} == {"temperature": 1.0, "top_p": 0.5}


@pytest.mark.parametrize("falsy", [False, 0.0, "none"])
def test_a_false_value_is_said_too(falsy: object) -> None:
    assert rm.Sampling(tool_choice=falsy).overrides() == {"tool_choice": falsy}
