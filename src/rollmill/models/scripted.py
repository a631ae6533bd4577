"""The scripted model as a backend: lines from a configuration."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from rollmill.errors import ConfigError
from rollmill.model import Line, Scripted
from rollmill.types import Item, encode, read_item


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    lines: tuple[str | dict[str, Any] | list[dict[str, Any]], ...] = ("ok",)
    model: str = "scripted"


def make(fields: Fields) -> Scripted:
    return Scripted(*map(_line, fields.lines), name=fields.model)


def _line(said: str | dict[str, Any] | list[dict[str, Any]]) -> Line:
    """A text, an item of the Responses API, or several items of one turn."""
    if isinstance(said, str):
        return said
    return [_item(item) for item in said] if isinstance(said, list) else _item(said)


def _item(said: dict[str, Any]) -> Item:
    # Arguments are text in an item, and easier written as what they are.
    if isinstance(said.get("arguments"), dict):
        said = said | {"arguments": encode(said["arguments"]).decode()}
    try:
        return read_item(encode({"call_id": "call_1"} | said if said.get("type") == "function_call" else said))
    except msgspec.ValidationError as error:
        raise ConfigError(f"scripted_model: {said!r} is no item: {error}") from None
