"""Chat Completions servers: the engine's own tokens, the template's arguments, and a real llama.cpp."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec import Raw

import rollmill as rm
from rollmill.config import convert
from rollmill.errors import ConfigError, ModelError
from rollmill.model import Conversation, Endpoint, Secret
from rollmill.models.vllm import VLLM, Fields, make
from rollmill.types import Reward, Tokens, encode

Serve = Callable[..., Awaitable[Any]]

USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


def completion(content: str | None = "Sun.", *, choice: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    first = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"id": "cmpl-1", "choices": [first | (choice or {})], "usage": USAGE, **fields}


def log_probs(*entries: tuple[str, float], **more: Any) -> dict[str, Any]:
    return {"logprobs": {"content": [{"token": token, "logprob": value, **more} for token, value in entries]}}


def about(*items: rm.Item, **params: Any) -> Conversation:
    return Conversation(items or (rm.user("sky?"),), {key: Raw(encode(value)) for key, value in params.items()})


async def ask(model: VLLM, conversation: Conversation | None = None) -> rm.Reply:
    async with model:
        return await model.reply(conversation or about())


async def fault(model: VLLM) -> rm.Failure:
    with pytest.raises(ModelError) as caught:
        await ask(model)
    return caught.value.failure


# Calls.


async def test_asks_and_answers(serve: Serve) -> None:
    server = await serve(completion())
    reply = await ask(VLLM("qwen", server.url, "sk-1"), about(rm.user("sky?"), max_output_tokens=9, model="other"))
    assert (reply.text, reply.usage, reply.fields["model"]) == ("Sun.", rm.Usage(9, 2), Raw(b'"qwen"'))
    (heard,) = server.heard
    assert heard.path == "/v1/chat/completions"
    assert heard.headers["Authorization"] == "Bearer sk-1"
    assert heard.json == {"model": "qwen", "max_tokens": 9, "messages": [{"role": "user", "content": "sky?"}]}


async def test_a_row_wins_over_the_configuration(serve: Serve) -> None:
    server = await serve(completion())
    model = VLLM("qwen", server.url, extra_body={"top_k": 20, "temperature": 0.1, "model": "other"})
    await ask(model, about(temperature=0.7, metadata={"extra_body": '{"min_p": 0.1, "model": "another"}'}))
    asked = server.heard[0].json
    asked.pop("messages")
    assert asked == {"model": "qwen", "top_k": 20, "temperature": 0.7, "min_p": 0.1}


async def test_the_templates_arguments_are_merged_one_by_one(serve: Serve) -> None:
    server = await serve(completion())
    fields = Fields(server.url, Secret(""), "qwen", chat_template_kwargs={"enable_thinking": True, "style": "plain"})
    await ask(make(fields), about(metadata={"chat_template_kwargs": '{"enable_thinking": false}'}))
    assert server.heard[0].json["chat_template_kwargs"] == {"enable_thinking": False, "style": "plain"}


async def test_reasoning_without_a_parser_lies_in_the_text_both_ways(serve: Serve) -> None:
    server = await serve(completion("<think>hm</think>\nSun."))
    async with make(Fields(server.url, Secret(""), "qwen", uses_reasoning_parser=False)) as model:
        reply = await model.reply(about())
        await model.reply(about(rm.user("sky?"), *reply.items, rm.user("sure?")))
    assert isinstance(reply.items[0], rm.Reasoning)
    assert reply.text == "Sun."
    assert server.heard[1].json["messages"][1] == {"role": "assistant", "content": "<think>hm</think>Sun."}


async def test_the_role_developer_is_the_configurations(serve: Serve) -> None:
    server = await serve(completion())
    developer = rm.Message(role="developer", content="be kind")
    for replaced in (True, False):
        fields = Fields(server.url, Secret(""), "qwen", replace_developer_role_with_system=replaced)
        await ask(make(fields), about(developer))
    assert [heard.json["messages"][0]["role"] for heard in server.heard] == ["system", "developer"]


async def test_a_conversation_that_no_longer_fits_is_an_ending(serve: Serve) -> None:
    server = await serve((400, {"error": {"message": "This model's maximum context length is 4096 tokens."}}))
    reply = await ask(VLLM("qwen", server.url))
    assert (reply.items, reply.stop) == ((), rm.Stop.CONTEXT)


async def test_what_is_no_completion_is_malformed(serve: Serve) -> None:
    server = await serve({"choices": []})
    assert (await fault(VLLM("qwen", server.url))).kind == "malformed"


async def test_the_check_names_the_keys_of_the_configuration() -> None:
    model = VLLM("qwen", "http://model.invalid/v1")
    assert isinstance(model, Endpoint)
    async with model:
        with pytest.raises(ConfigError, match=r"model\.invalid.*policy_base_url and policy_api_key"):
            await model.check()


def test_the_configuration_is_nemo_gyms() -> None:
    given = {
        "base_url": ["http://a:8000/v1", "http://b:8000/v1"],
        "api_key": "sk-1",
        "model": "qwen",
        "return_token_id_information": True,
        "uses_reasoning_parser": True,
        "replace_developer_role_with_system": True,
        "chat_template_kwargs": {"enable_thinking": False},
        "extra_body": {"top_k": 20},
    }
    fields = convert(given, Fields)
    assert make(fields).name == "qwen"
    assert "sk-1" not in repr(fields)


# The engine's own tokens.


async def test_a_server_that_returns_token_ids(serve: Serve) -> None:
    choice = {"token_ids": [7, 8], **log_probs(("Su", -0.5), ("n.", -0.25))}
    server = await serve(completion(choice=choice, prompt_token_ids=[1, 2, 3]))
    reply = await ask(VLLM("qwen", server.url, token_ids=True))
    assert reply.items[-1].tokens == Tokens([1, 2, 3], [7, 8], [-0.5, -0.25])
    asked = server.heard[0].json
    assert (asked["logprobs"], asked["return_token_ids"], asked["return_tokens_as_token_ids"]) == (True, True, True)
    assert len(server.heard) == 1


async def test_a_server_that_writes_token_ids_in_place_of_texts(serve: Serve) -> None:
    choice = log_probs(("token_id:7", -0.5), ("token_id:8", -0.25))
    server = await serve(completion(choice=choice, prompt_token_ids=[1, 2, 3]))
    reply = await ask(VLLM("qwen", server.url, token_ids=True))
    assert reply.items[-1].tokens == Tokens([1, 2, 3], [7, 8], [-0.5, -0.25])


async def test_a_server_that_names_the_id_of_every_token(serve: Serve) -> None:
    server = await serve(completion(choice=log_probs(("Sun.", -0.5), id=7), prompt_token_ids=[1]))
    reply = await ask(VLLM("qwen", server.url, token_ids=True))
    assert reply.items[-1].tokens == Tokens([1], [7], [-0.5])


async def test_a_prompt_is_tokenized_beside_v1_where_the_completion_did_not(serve: Serve) -> None:
    server = await serve(completion(choice=log_probs(("token_id:7", -0.5))), {"tokens": [1, 2], "count": 2})
    model = VLLM("qwen", server.url, token_ids=True, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    reply = await ask(model, about(rm.user("sky?"), tools=[TOOL], temperature=0.5))
    assert reply.items[-1].tokens == Tokens([1, 2], [7], [-0.5])
    completed, tokenized = server.heard
    assert tokenized.path == "/tokenize"
    assert tokenized.json == {
        "model": "qwen",
        "messages": completed.json["messages"],
        "tools": completed.json["tools"],
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": True,
    }


async def test_a_conversations_prompt_is_tokenized_where_it_was_answered(serve: Serve) -> None:
    async def answer(request: web.Request) -> web.Response:
        tokenized = request.path == "/tokenize"
        return web.json_response({"tokens": [1]} if tokenized else completion(choice=log_probs(("token_id:7", -1.0))))

    servers = [await serve(answer) for _ in range(2)]
    async with VLLM("qwen", [server.url for server in servers], token_ids=True) as model:
        for turn in range(3):
            await model.reply(Conversation((rm.user("sky?"),), id="rollout 1", turn=turn))
    assert sorted(len(server.heard) for server in servers) == [0, 6]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({}, "0 generated tokens but 0 log probabilities"),
        ({"logprobs": None}, "0 generated tokens but 0 log probabilities"),
        ({"token_ids": [7, 8]}, "2 generated tokens but 0 log probabilities"),
        ({"token_ids": [7, 8], **log_probs(("Sun.", -0.5))}, "2 generated tokens but 1 log probabilities"),
        (log_probs(("Sun.", -0.5)), "text such as 'Sun.'"),
        (log_probs(("token_id:", -0.5)), "text such as 'token_id:'"),
        (log_probs(("token_id:x", -0.5)), "text such as 'token_id:x'"),
    ],
)
async def test_missing_token_ids_are_a_malformed_answer(serve: Serve, choice: dict[str, Any], said: str) -> None:
    server = await serve(completion(choice=choice, prompt_token_ids=[1]))
    failure = await fault(VLLM("qwen", server.url, token_ids=True))
    assert failure.kind == "malformed"
    assert "token ids were asked for" in failure.detail
    assert said in failure.detail


@pytest.mark.parametrize("tokenized", [b"", b"[]", {}, {"tokens": None}, {"tokens": ["a"]}])
async def test_a_prompt_without_token_ids_is_a_malformed_answer(serve: Serve, tokenized: Any) -> None:
    server = await serve(completion(choice=log_probs(("token_id:7", -0.5))), tokenized)
    failure = await fault(VLLM("qwen", server.url, token_ids=True))
    assert failure.kind == "malformed"
    assert "/tokenize" in failure.detail


async def test_a_server_without_a_tokenizer_is_named(serve: Serve) -> None:
    server = await serve(completion(choice=log_probs(("token_id:7", -0.5))), (404, {"detail": "Not Found"}))
    failure = await fault(VLLM("qwen", server.url, token_ids=True))
    assert failure.kind == "denied"
    assert "/tokenize answered 404" in failure.detail


async def test_tokens_lie_on_the_last_item_and_go_back_with_the_next_turn(serve: Serve) -> None:
    wants = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [wants]}
    choice = {"message": message, "token_ids": [7], **log_probs(("x", -0.5))}
    server = await serve(completion(choice=choice, prompt_token_ids=[1, 2]))
    async with VLLM("qwen", server.url, token_ids=True) as model:
        reply = await model.reply(about())
        await model.reply(about(rm.user("sky?"), *reply.items, rm.FunctionCallOutput(call_id="a", output="sun")))
    assert [item.tokens for item in reply.items] == [None, Tokens([1, 2], [7], [-0.5])]
    _, sent, heard = server.heard[1].json["messages"]
    assert (sent["content"], sent["tool_calls"]) == ("I look.", [wants])
    assert sent["prompt_token_ids"] == [1, 2]
    assert sent["generation_token_ids"] == [7]
    assert sent["generation_log_probs"] == [-0.5]
    assert heard == {"role": "tool", "tool_call_id": "a", "content": "sun"}


async def test_tokens_are_not_asked_for_unless_wanted(serve: Serve) -> None:
    server = await serve(completion(choice={"token_ids": [7], **log_probs(("x", -0.5))}, prompt_token_ids=[1]))
    reply = await ask(VLLM("qwen", server.url))
    assert reply.items[-1].tokens is None
    assert "return_token_ids" not in server.heard[0].json


# A real server.


class Weather(rm.Environment[rm.Task]):
    @rm.tool
    def get_weather(self, city: str) -> str:
        """The weather in a city."""
        return f"The weather in {city} is rainy."

    @rm.reward
    def says_the_weather(self) -> bool:
        return "rain" in self.trajectory.answer.lower()

    @rm.reward(weight=0)
    def looked(self) -> bool:
        return self.trajectory.tool_calls == 1


class CallsFirst:
    """The same model, made to call a tool at its first turn: 135 million weights do not always think of it."""

    def __init__(self, model: rm.Model) -> None:
        self.name = model.name
        self._model = model

    async def reply(self, conversation: Conversation) -> rm.Reply:
        choice = Raw(b'"auto"' if conversation.turn else b'"required"')
        params = {**conversation.params, "tool_choice": choice}
        return await self._model.reply(msgspec.structs.replace(conversation, params=params))


def example(city: str, sky: str) -> list[rm.Item]:
    """How it is done, for a model that was not trained on tools."""
    found = f"The weather in {city} is {sky}."
    return [
        rm.user(f"Weather in {city}?"),
        rm.call("get_weather", f"call_{city}", city=city),
        rm.FunctionCallOutput(call_id=f"call_{city}", output=found),
        rm.assistant(found),
    ]


def weather_task() -> rm.Task:
    prompt = [*example("Rome", "sunny"), *example("Oslo", "cold"), rm.user("Weather in Paris?")]
    return rm.Task.of(prompt).with_params({"temperature": 0, "max_output_tokens": 48})


async def test_a_real_model_calls_a_tool_and_tells_what_it_found(llama: str) -> None:
    async with VLLM("smollm2", llama) as model:
        await model.check()
        rollout = await rm.play(weather_task(), Weather, rm.ToolAgent(max_turns=4), CallsFirst(model))
    assert rollout.failure is None
    assert (rollout.stop, rollout.turns, rollout.tool_calls) == (rm.Stop.DONE, 2, 1)
    called, found, told = rollout.response.output
    assert isinstance(called, rm.FunctionCall)
    assert isinstance(found, rm.FunctionCallOutput)
    assert isinstance(told, rm.Message)
    assert called.name == "get_weather"
    assert found.call_id == called.call_id
    assert found.text == f"The weather in {json.loads(called.arguments)['city']} is rainy."
    assert told.role == "assistant"
    right = float("rain" in told.text.lower())
    assert rollout.reward == Reward(right, {"says_the_weather": right}, {"looked": 1.0})
    usage = rollout.response.usage
    assert usage.input_tokens > 300
    assert 0 < usage.output_tokens <= 96
    assert not usage.estimated
    assert rollout.seconds["model"] > 0


async def test_a_real_server_refuses_what_no_longer_fits(llama: str) -> None:
    reply = await ask(VLLM("smollm2", llama), about(rm.user("word " * 5000)))
    assert (reply.items, reply.stop) == ((), rm.Stop.CONTEXT)


async def test_a_real_server_cuts_an_answer_at_its_limit(llama: str) -> None:
    reply = await ask(VLLM("smollm2", llama), about(rm.user("Tell me a long story."), max_output_tokens=4))
    assert reply.stop is rm.Stop.LENGTH
    assert reply.usage.output_tokens == 4
