"""A response as the events of a stream: for clients that ask for one, made when all of it is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from rollmill.types import decode, encode

Event = dict[str, Any]


def of_response(response: Mapping[str, Any]) -> Iterator[Event]:
    """The events of the Responses API, numbered."""
    for number, event in enumerate(_events(response)):
        yield event | {"sequence_number": number}


def _events(response: Mapping[str, Any]) -> Iterator[Event]:
    begun = {**response, "output": [], "status": "in_progress", "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, raw in enumerate(response["output"]):
        item = decode(raw) if not isinstance(raw, dict) else raw
        at = {"output_index": place, "item_id": item.get("id") or f"item_{place}"}
        yield {"type": "response.output_item.added", "output_index": place, "item": _empty(item)}
        yield from _inside(item, at)
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
    ending = "incomplete" if response.get("status") == "incomplete" else "completed"
    yield {"type": f"response.{ending}", "response": {**response}}


def _empty(item: Event) -> Event:
    match item.get("type", "message"):
        case "message":
            return item | {"content": [], "status": "in_progress"}
        case "function_call":
            return item | {"arguments": "", "status": "in_progress"}
    return item


def _inside(item: Event, at: Event) -> Iterator[Event]:
    kind = item.get("type", "message")
    if kind == "function_call":
        arguments = item.get("arguments", "")
        yield {"type": "response.function_call_arguments.delta", **at, "delta": arguments}
        yield {"type": "response.function_call_arguments.done", **at, "arguments": arguments}
    content = item.get("content") if kind == "message" else None
    for number, part in enumerate(content if isinstance(content, list) else ()):
        here = at | {"content_index": number}
        yield {"type": "response.content_part.added", **here, "part": part | ({"text": ""} if "text" in part else {})}
        if "text" in part:
            yield {"type": "response.output_text.delta", **here, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **here, "part": part}


def failed(message: str, code: str, response: Mapping[str, Any]) -> Iterator[Event]:
    """The events of a response that never came; clients want to hear of it before they hear that it failed."""
    yield {"type": "response.created", "sequence_number": 0, "response": {**response, "status": "in_progress"}}
    wrong = {"status": "failed", "error": {"code": code, "message": message}}
    yield {"type": "response.failed", "sequence_number": 1, "response": {**response, **wrong}}


async def named(events: Iterable[Event]) -> AsyncIterator[bytes]:
    """Each with its name, as the Responses API sends them."""
    for event in events:
        yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))


async def unnamed(chunks: Iterable[Event]) -> AsyncIterator[bytes]:
    """As Chat Completions sends them, to the end that its clients wait for."""
    for chunk in chunks:
        yield b"data: %b\n\n" % encode(chunk)
    yield b"data: [DONE]\n\n"
