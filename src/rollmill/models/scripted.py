"""The scripted model as a backend: lines from a configuration."""

from __future__ import annotations

from msgspec import Struct

from rollmill.model import Scripted


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    lines: tuple[str, ...] = ("ok",)
    model: str = "scripted"


def make(fields: Fields) -> Scripted:
    return Scripted(*fields.lines, name=fields.model)
