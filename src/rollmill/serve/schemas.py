"""The JSON schemas of what services take and give, as their descriptions show them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from rollmill.types import Task

Schema = dict[str, Any]

_TEXT = {"type": "string"}
_ID = {"type": ["string", "null"]}
_PART = {"type": "object", "required": ["type"], "properties": {"type": _TEXT, "text": _ID, "refusal": _ID}}
_PARTS = {"type": "array", "items": _PART}


def _item(kind: str, *required: str, **properties: Schema) -> Schema:
    own = {"type": {"const": kind}, "id": _ID, "status": _ID, **properties}
    return {"type": "object", "required": [*required], "properties": own}


_KNOWN = ("message", "function_call", "function_call_output", "reasoning")
_OTHER = {"type": "string", "not": {"enum": [*_KNOWN]}}
_ITEM: Schema = {
    "anyOf": [
        _item("message", "role", role=_TEXT, content={"anyOf": [_ID, _PARTS]}),
        _item("function_call", "type", "name", "call_id", name=_TEXT, call_id=_TEXT, arguments=_TEXT),
        _item("function_call_output", "type", "call_id", "output", call_id=_TEXT, output={"anyOf": [_TEXT, _PARTS]}),
        _item("reasoning", "type", summary=_PARTS, content={"anyOf": [{"type": "null"}, _PARTS]}),
        # What this version does not know passes through.
        {"type": "object", "required": ["type"], "properties": {"type": _OTHER}},
    ]
}
ITEMS: Schema = {"type": "array", "items": _ITEM}
INPUT: Schema = {"anyOf": [_TEXT, ITEMS]}
"""What a model is asked: a text, or the items of a conversation."""
ROWS: Schema = {
    "type": "object",
    "required": ["verify_responses"],
    "properties": {"verify_responses": {"type": "array", "items": {"type": "object"}}},
}
"""What `/aggregate_metrics` takes."""
RESPONSE: Schema = {"type": "object", "required": ["output"], "properties": {"output": ITEMS}}
_PARAMS: Schema = {"type": "object", "required": ["input"], "properties": {"input": INPUT}}


def of(kind: type[Struct], **properties: Schema) -> Schema:
    """The schema of a struct, with what its types leave open. Raises `TypeError` where they say nothing."""
    schema = msgspec.json.schema(kind)
    schema["$defs"][schema["$ref"].rpartition("/")[2]]["properties"] |= properties
    return schema


def row(kind: type[Task]) -> Schema:
    """What a row of these tasks is, as far as their types say it."""
    try:
        return of(kind, responses_create_params=_PARAMS)
    except TypeError:
        # A type that its author reads in a way of his own.
        return of(Task, responses_create_params=_PARAMS)


def judged(kind: type[Task]) -> Schema:
    """A row with what the model has said and done."""
    whole = row(kind)
    return {**whole, "required": ["response"], "properties": {"response": RESPONSE}}
