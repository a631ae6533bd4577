"""A real model inside this process."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec import Raw

import rollmill as rm
from rollmill.errors import ConfigError
from rollmill.model import Conversation, Endpoint
from rollmill.models import weights
from rollmill.models.embedded import Embedded, Fields, make
from rollmill.types import encode

pytest.importorskip("xllamacpp")
# The model is loaded once for all tests here, so they share its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
OTHER = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def model(model_file: Path) -> AsyncIterator[Embedded]:
    async with Embedded(places=8, context=1024, token_ids=True) as model:
        yield model


def about(*said: rm.Item | str, max_output_tokens: int = 8, **params: Any) -> Conversation:
    items = [rm.user(item) if isinstance(item, str) else item for item in said]
    asked = {"max_output_tokens": max_output_tokens, "temperature": 0, **params}
    return Conversation(items, {key: Raw(encode(value)) for key, value in asked.items()})


def example(city: str) -> list[rm.Item]:
    """How it is done, for a model that was not trained on tools."""
    called = rm.call("get_weather", f"call_{city}", city=city)
    found = rm.FunctionCallOutput(call_id=called.call_id, output="Sunny.")
    return [rm.user(f"Weather in {city}?"), called, found, rm.assistant("Sunny.")]


async def test_answers_and_counts(model: Embedded) -> None:
    reply = await model.reply(about("What is 2+2?", max_output_tokens=24))
    assert reply.text
    assert reply.usage.input_tokens > 10
    assert 0 < reply.usage.output_tokens <= 24
    assert not reply.usage.estimated


async def test_every_sampled_token_has_its_probability(model: Embedded) -> None:
    reply = await model.reply(about("Count to ten.", max_output_tokens=24))
    tokens = reply.items[-1].tokens
    assert tokens is not None
    assert len(tokens.prompt_token_ids) == reply.usage.input_tokens
    assert len(tokens.generation_token_ids) == len(tokens.generation_log_probs) == reply.usage.output_tokens
    assert all(math.isfinite(value) and value <= 0 for value in tokens.generation_log_probs)
    assert all(isinstance(token, int) and token >= 0 for token in tokens.prompt_token_ids + tokens.generation_token_ids)


async def test_the_next_prompt_begins_with_the_tokens_of_the_last_turn(model: Embedded) -> None:
    # Cut at its limit, the answer has no end-of-turn token; up to there the two agree.
    first = await model.reply(about("Count to ten.", max_output_tokens=4))
    second = await model.reply(about("Count to ten.", *first.items, "Go on.", max_output_tokens=4))
    before, after = first.items[-1].tokens, second.items[-1].tokens
    assert before is not None
    assert after is not None
    seen = before.prompt_token_ids + before.generation_token_ids
    assert after.prompt_token_ids[: len(seen)] == seen


async def test_tokens_of_a_conversation_with_tools(model: Embedded) -> None:
    reply = await model.reply(about("Weather in Paris?", tools=[TOOL], tool_choice="required", max_output_tokens=48))
    tokens = reply.items[-1].tokens
    assert tokens is not None
    assert len(tokens.prompt_token_ids) == reply.usage.input_tokens


async def test_sixteen_questions_at_eight_places(model: Embedded) -> None:
    asked = [about(f"What is {n} + {n}? Answer with the number.", max_output_tokens=12) for n in range(16)]
    replies = await asyncio.gather(*(model.reply(conversation) for conversation in asked))
    assert len(replies) == 16
    assert all(reply.text and reply.usage.output_tokens for reply in replies)


async def test_the_same_question_has_the_same_answer(model: Embedded) -> None:
    first, second = [await model.reply(about("Name a colour.")) for _ in range(2)]
    assert first.text == second.text


async def test_a_cancelled_reply_frees_its_place(model: Embedded) -> None:
    stories = [
        asyncio.create_task(model.reply(about(f"Tell me a long story about {n} cats.", max_output_tokens=900)))
        for n in range(8)
    ]
    await asyncio.sleep(0.3)
    assert not any(story.done() for story in stories)
    for story in stories:
        story.cancel()
    await asyncio.gather(*stories, return_exceptions=True)
    async with asyncio.timeout(20):
        replies = await asyncio.gather(*(model.reply(about("Name a colour.", max_output_tokens=4)) for _ in range(8)))
    assert all(reply.text for reply in replies)


async def test_one_tool_can_be_asked_for_by_name(model: Embedded) -> None:
    choice = {"type": "function", "name": "get_weather"}
    said = [*example("Rome"), *example("Oslo"), "Weather in Paris?"]
    asked = about(*said, tools=[OTHER, TOOL], tool_choice=choice, max_output_tokens=48)
    assert [call.name for call in (await model.reply(asked)).calls] == ["get_weather"]


async def test_an_answer_has_the_form_that_was_asked_for(model: Embedded) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    reply = await model.reply(about("Is the sky blue?", text=form, max_output_tokens=32))
    assert isinstance(msgspec.json.decode(reply.text)["a"], bool)


async def test_a_conversation_that_no_longer_fits_is_an_ending(model: Embedded) -> None:
    reply = await model.reply(about("word " * 5000))
    assert (reply.items, reply.stop) == ((), rm.Stop.CONTEXT)


async def test_an_answer_is_cut_at_its_limit(model: Embedded) -> None:
    reply = await model.reply(about("Tell me a long story.", max_output_tokens=3))
    assert (reply.stop, reply.usage.output_tokens) == (rm.Stop.LENGTH, 3)


async def test_it_needs_no_check(model: Embedded) -> None:
    assert isinstance(model, Endpoint)
    await model.check()
    assert model.places == 8


async def test_a_file_answers_under_its_name_and_can_be_entered_again(model_file: Path) -> None:
    model = Embedded(str(model_file), places=1, context=256)
    for _ in range(2):
        async with model:
            reply = await model.reply(about("Name a colour.", max_output_tokens=2))
        assert reply.items
        assert bytes(reply.fields["model"]) == encode(model_file.name)
        assert str(model_file.parent) not in repr(reply)
    assert model.name == model_file.name
    with pytest.raises(ConfigError, match="async with"):
        await model.reply(about("Name a colour."))


async def test_a_model_that_was_never_pulled_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMILL_MODELS", str(tmp_path))
    with pytest.raises(ConfigError, match=f"rollmill models pull {weights.DEFAULT}"):
        make(Fields())


async def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.gguf: there is no such file"):
        Embedded(str(tmp_path / "nothing.gguf"))


async def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    file = tmp_path / "garbage.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=r"garbage\.gguf could not be loaded"):
        await Embedded(str(file)).__aenter__()


async def test_is_made_from_a_configuration(model_file: Path) -> None:
    model = make(msgspec.convert({"model": weights.DEFAULT, "places": 2, "context": 512, "threads": 1}, Fields))
    assert (model.name, model.places) == (weights.DEFAULT, 2)
