"""Chat Completions as a service: a request of theirs as a conversation, a reply as one of their completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal
from uuid import uuid4

from msgspec import Meta, Raw, Struct

from rollmill.model import Conversation
from rollmill.serve.http import Problem, invalid
from rollmill.store.schema import UNREADABLE
from rollmill.types import FunctionCall, Item, Message, Reasoning, Reply, Stop, decode, encode, read_item

_RENAMED = {"max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens"}
_NOT_PASSED = {
    *("messages", "model", "stream", "stream_options", "n", "tools", "tool_choice", "response_format"),
    *("reasoning_effort", "functions", "function_call"),
}


class _Function(Struct):
    name: str
    arguments: str = "{}"


class _Call(Struct):
    id: str
    function: _Function


class _Said(Struct):
    role: Literal["assistant", "tool", "user", "system", "developer"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""
    reasoning_content: str | None = None


class Asked(Struct):
    """A request, as far as it is checked."""

    messages: Annotated[list[_Said], Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


def conversation(asked: Asked, fields: Mapping[str, Raw]) -> Conversation:
    """What the request asks a model. Raises `Problem`."""
    if asked.n not in (None, 1):
        raise invalid("`n`: one completion a request")
    params = {_RENAMED.get(name, name): raw for name, raw in fields.items() if name not in _NOT_PASSED}
    if asked.tools:
        params["tools"] = Raw(encode([_tool(tool) for tool in asked.tools]))
    if asked.tool_choice is not None:
        params["tool_choice"] = Raw(encode(_choice(asked.tool_choice)))
    if asked.reasoning_effort is not None:
        params["reasoning"] = Raw(encode({"effort": asked.reasoning_effort}))
    if asked.response_format is not None:
        params["text"] = Raw(encode({"format": _format(asked.response_format)}))
    return Conversation(tuple(item for said in asked.messages for item in _items(said)), params)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else tool


def _choice(choice: str | dict[str, Any]) -> Any:
    function = choice.get("function") if isinstance(choice, dict) else None
    return {"type": "function", **function} if isinstance(function, dict) else choice


def _format(form: dict[str, Any]) -> dict[str, Any]:
    schema = form.get("json_schema")
    return {"type": "json_schema", **schema} if isinstance(schema, dict) else form


def _items(said: _Said) -> Iterator[Item]:
    match said.role:
        case "assistant":
            yield from _assistant(said)
        case "tool":
            output = _text(said.content)
            yield _item(type="function_call_output", call_id=said.tool_call_id, output=output)
        case role:
            content = said.content if isinstance(said.content, list) else said.content or ""
            yield _item(role=role, content=[_part(p) for p in content] if isinstance(content, list) else content)


def _assistant(said: _Said) -> Iterator[Item]:
    if said.reasoning_content:
        yield _item(type="reasoning", summary=[{"type": "summary_text", "text": said.reasoning_content}])
    text = _text(said.content)
    if text or not said.tool_calls:
        parts = [{"type": "output_text", "text": text, "annotations": []}]
        yield _item(type="message", role="assistant", status="completed", content=parts)
    for call in said.tool_calls or ():
        function = call.function
        yield _item(type="function_call", name=function.name, arguments=function.arguments, call_id=call.id)


def _item(**fields: Any) -> Item:
    try:
        return read_item(encode(fields))
    except UNREADABLE as error:
        raise invalid(f"`messages`: {error}") from None


def _text(content: str | list[dict[str, Any]] | None) -> str:
    parts = content or ""
    return parts if isinstance(parts, str) else "".join(str(part.get("text") or "") for part in parts)


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "text"}:
            return {"type": "input_text", "text": str(part.get("text") or "")}
        case {"type": "image_url", "image_url": {"url": url, **more}}:
            return {"type": "input_image", "image_url": url, "detail": more.get("detail", "auto")}
        case {"type": str()}:
            return part
    raise Problem(422, "invalid", "`messages`: a part of a content has no `type`")


# Back again.

_FINISHED = {Stop.LENGTH: "length", Stop.CONTEXT: "length", Stop.CONTENT_FILTER: "content_filter"}


def completion(reply: Reply, model: str) -> dict[str, Any]:
    """A reply as a chat completion."""
    usage = reply.usage
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": _message(reply), "finish_reason": _finish(reply), "logprobs": None}],
        "usage": {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        },
    }


def _message(reply: Reply) -> dict[str, Any]:
    text = "".join(item.text for item in reply.items if isinstance(item, Message))
    reasoning = "".join(item.text for item in reply.items if isinstance(item, Reasoning))
    calls = [
        {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        for item in reply.items
        if isinstance(item, FunctionCall)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    tokens = reply.items[-1].tokens if reply.items else None
    return message | (decode(encode(tokens)) if tokens is not None else {})


def _finish(reply: Reply) -> str:
    if reply.stop is not None:
        return _FINISHED.get(reply.stop, "stop")
    return "tool_calls" if reply.calls else "stop"


def chunks(whole: Mapping[str, Any], *, usage: bool) -> Iterator[dict[str, Any]]:
    """The completion as a stream has it: the role, what is said, why it ended, and if it is wanted the usage."""
    head = {name: whole[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = whole["choices"][0]
    message = choice["message"]
    said: Sequence[dict[str, Any]] = (
        {"role": "assistant", "content": ""},
        *({name: message[name]} for name in ("reasoning_content", "content") if message.get(name)),
        *({"tool_calls": [{"index": place, **call}]} for place, call in enumerate(message.get("tool_calls", ()))),
    )
    for delta in said:
        yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if usage:
        yield head | {"choices": [], "usage": whole["usage"]}
