"""Chat Completions to and from the items of the Responses API."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from rollmill.errors import ModelError
from rollmill.models.http import UNREADABLE
from rollmill.types import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Part,
    Reasoning,
    Reply,
    Stop,
    Tokens,
    Usage,
    assistant,
    decode,
    encode,
    read_item,
)

# What the Responses API knows and Chat Completions does not, or says in another way.
_NOT_CHAT = frozenset(
    (
        *("input", "instructions", "text", "reasoning", "metadata", "max_output_tokens", "max_tool_calls"),
        *("tools", "tool_choice", "parallel_tool_calls", "prompt", "prompt_cache_key", "safety_identifier"),
        *("store", "include", "previous_response_id", "conversation", "truncation", "background", "service_tier"),
        *("stream", "stream_options"),
    )
)


class Dialect(Struct, frozen=True):
    """How a server wants what chat completions leave open."""

    think_tags: bool = False
    """Reasoning lies in the content as `<think>…</think>`: the server has no reasoning parser."""
    tokens: bool = False
    """Earlier assistant messages carry the engine's own tokens."""
    developer: bool = False
    """The role `developer` is known; otherwise it is said as `system`."""


def to_request(items: Sequence[Item], params: Mapping[str, Raw], dialect: Dialect) -> dict[str, Any]:
    """The body of a chat completion that continues a conversation."""
    asked = {key: decode(value) for key, value in params.items() if key != "input"}
    messages = list(_messages(items, dialect))
    if instructions := asked.get("instructions"):
        messages.insert(0, Raw(encode({"role": "system", "content": instructions})))
    body: dict[str, Any] = {key: value for key, value in asked.items() if key not in _NOT_CHAT and value is not None}
    body["messages"] = messages
    if asked.get("max_output_tokens") is not None:
        body["max_tokens"] = asked["max_output_tokens"]
    if asked.get("tools"):
        body |= _tools(asked)
    if (asked.get("reasoning") or {}).get("effort"):
        body["reasoning_effort"] = asked["reasoning"]["effort"]
    if response_format := _format((asked.get("text") or {}).get("format")):
        body["response_format"] = response_format
    return body | _extra(asked.get("metadata") or {})


def _tools(asked: Mapping[str, Any]) -> dict[str, Any]:
    tools: list[dict[str, Any]] = []
    for tool in asked["tools"]:
        if tool.get("type") != "function" or "function" in tool:
            tools.append(tool)
            continue
        function = {key: value for key, value in tool.items() if key != "type" and value is not None}
        tools.append({"type": "function", "function": function})
    body: dict[str, Any] = {"tools": tools}
    choice = asked.get("tool_choice")
    if isinstance(choice, dict) and "name" in choice:
        choice = {"type": "function", "function": {"name": choice["name"]}}
    if choice is not None:
        body["tool_choice"] = choice
    if asked.get("parallel_tool_calls") is not None:
        body["parallel_tool_calls"] = asked["parallel_tool_calls"]
    return body


def _format(form: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Structured output: Responses says `text.format`, chat says `response_format`."""
    if form is None or form.get("type") == "text":
        return None
    if form.get("type") == "json_schema":
        schema = {key: form[key] for key in ("name", "description", "schema", "strict") if form.get(key) is not None}
        return {"type": "json_schema", "json_schema": schema}
    return dict(form)


def _extra(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Per-request fields for the engine, which NeMo Gym's rows carry as JSON text in the metadata."""
    extra = _object(metadata, "extra_body")
    if kwargs := _object(metadata, "chat_template_kwargs"):
        extra["chat_template_kwargs"] = {**extra.get("chat_template_kwargs", {}), **kwargs}
    return extra


def _object(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    try:
        return decode(metadata.get(key, "{}"), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ModelError("caller", f"the row's metadata.{key} is no JSON object: {error}") from None


def _messages(items: Iterable[Item], dialect: Dialect) -> Iterable[Raw]:
    """The messages as JSON; one that was made for an earlier turn is not made again."""
    turn: list[Item] = []
    for item in items:
        mine = isinstance(item, Reasoning | FunctionCall) or (isinstance(item, Message) and item.role == "assistant")
        if mine:
            turn.append(item)
        # The tokens lie on the last item of a model call, so that two calls in a row stay two messages.
        if turn and (not mine or item.tokens is not None):
            yield _kept(turn, dialect, _assistant)
            turn = []
        if isinstance(item, FunctionCallOutput) or (isinstance(item, Message) and not mine):
            yield _kept([item], dialect, _heard)
    if turn:
        yield _kept(turn, dialect, _assistant)


def _kept(items: list[Item], dialect: Dialect, make: Callable[[list[Item], Dialect], dict[str, Any]]) -> Raw:
    """The message that these items make, kept on the last of them: an item lives as long as its rollout."""
    *before, last = items
    known = last.__dict__.get("chat_message")
    if known is not None and known[0] == dialect and _same(known[1], before):
        message: Raw = known[2]
        return message
    message = Raw(encode(make(items, dialect)))
    last.__dict__["chat_message"] = (dialect, before, message)
    return message


def _same(items: list[Item], others: list[Item]) -> bool:
    return len(items) == len(others) and all(map(operator.is_, items, others))


def _assistant(items: list[Item], dialect: Dialect) -> dict[str, Any]:
    reasoning = "".join(item.text for item in items if isinstance(item, Reasoning))
    text = "".join(item.text for item in items if isinstance(item, Message))
    calls = [
        {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        for item in items
        if isinstance(item, FunctionCall)
    ]
    thought = f"<think>{reasoning}</think>" if reasoning and dialect.think_tags else ""
    # An explicit empty content: templates and trainers look for the key.
    message: dict[str, Any] = {"role": "assistant", "content": thought + text}
    if reasoning and not dialect.think_tags:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    tokens = items[-1].tokens
    if dialect.tokens and tokens is not None:
        message |= msgspec.structs.asdict(tokens)
    return message


def _heard(items: list[Item], dialect: Dialect) -> dict[str, Any]:
    match items:
        case [FunctionCallOutput() as output]:
            return {"role": "tool", "tool_call_id": output.call_id, "content": output.text}
        case [Message() as message]:
            role = "system" if message.role == "developer" and not dialect.developer else message.role
            return {"role": role, "content": _content(message)}
    raise TypeError(f"nobody said {items}")


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not isinstance(message.content, tuple) or all(part.text is not None for part in message.content):
        return message.text
    parts = decode(message.json)["content"]
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text") or ""}
        case "input_image":
            image = {"url": part.get("image_url"), "detail": part.get("detail")}
            return {"type": "image_url", "image_url": {key: value for key, value in image.items() if value}}
    return part


# Back again.


class _Function(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(Struct):
    function: _Function
    id: str | None = None


class _Message(Struct):
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _LogProb(Struct):
    token: str
    logprob: float
    id: int | None = None


class _LogProbs(Struct):
    content: list[_LogProb] | None = None


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _LogProbs | None = None
    token_ids: list[int] | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class Completion(Struct):
    """A chat completion, as far as it is read."""

    choices: list[_Choice]
    id: str | None = None
    created: int | None = None
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


_decoder = msgspec.json.Decoder(Completion)
_STOPS = {"length": Stop.LENGTH, "content_filter": Stop.CONTENT_FILTER}


def read_completion(body: bytes) -> Completion:
    try:
        completion = _decoder.decode(body)
    except UNREADABLE as error:
        raise ModelError("malformed", f"the answer is no chat completion: {error}") from None
    if not completion.choices:
        raise ModelError("malformed", "the answer has no choices")
    return completion


def to_reply(completion: Completion, tokens: Tokens | None, dialect: Dialect, model: str) -> Reply:
    """A chat completion of `model` as a reply, its tokens on its last item."""
    choice = completion.choices[0]
    items = list(_items(choice.message, dialect))
    if tokens is not None:
        # A model that stopped at once said nothing, and yet sampled a token that a trainer must see.
        items = items or [assistant("", id=_new_id("msg"))]
        items[-1] = items[-1].with_tokens(tokens)
    stop = _STOPS.get(choice.finish_reason or "")
    reason = {Stop.LENGTH: "max_output_tokens", Stop.CONTENT_FILTER: "content_filter"}
    fields = {
        "id": f"resp_{completion.id or uuid4().hex}",
        "created_at": completion.created,
        "model": model,
        "status": "incomplete" if stop else "completed",
        "incomplete_details": {"reason": reason[stop]} if stop else None,
    }
    raw = {key: Raw(encode(value)) for key, value in fields.items()}
    return Reply(tuple(items), _usage(completion.usage, items), stop, raw)


def _items(message: _Message, dialect: Dialect) -> Iterable[Item]:
    parts = message.content or ""
    content = parts if isinstance(parts, str) else "".join(part.text or "" for part in parts)
    reasoning = message.reasoning_content or message.reasoning or ""
    if dialect.think_tags and not reasoning:
        reasoning, content = _split_thought(content)
    if reasoning:
        summary = [{"type": "summary_text", "text": reasoning}]
        yield read_item(encode({"id": _new_id("rs"), "type": "reasoning", "summary": summary}))
    if content or message.refusal or not (message.tool_calls or reasoning):
        yield assistant(content or message.refusal or "", id=_new_id("msg"))
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        fields = {
            "id": _new_id("fc"),
            "type": "function_call",
            "status": "completed",
            "name": call.function.name,
            "arguments": arguments if isinstance(arguments, str) else encode(arguments or {}).decode(),
            "call_id": call.id or _new_id("call"),
        }
        yield read_item(encode(fields))


def _split_thought(content: str) -> tuple[str, str]:
    """`<think>…</think>` at the beginning of a text, and what follows; the opening tag may lie in the prompt."""
    thought, closed, rest = content.partition("</think>")
    if not closed:
        return "", content
    return thought.removeprefix("<think>"), rest.lstrip("\n")


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"


def _usage(usage: _Usage | None, items: Sequence[Item]) -> Usage:
    if usage is None or usage.completion_tokens is None:
        return Usage.estimate(items)
    heard = usage.prompt_tokens_details or _PromptDetails()
    said = usage.completion_tokens_details or _CompletionDetails()
    return Usage(usage.prompt_tokens, usage.completion_tokens, heard.cached_tokens or 0, said.reasoning_tokens or 0)
