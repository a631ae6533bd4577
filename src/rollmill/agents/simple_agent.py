"""The default agent of every environment: `ToolAgent` by the name that configurations know."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from rollmill.agent import ToolAgent


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    max_steps: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    deadline_s: Annotated[float, Meta(gt=0)] | None = None


def make(fields: Fields) -> ToolAgent:
    return ToolAgent(
        max_turns=fields.max_steps or 100,
        max_tool_calls=fields.max_tool_calls,
        max_tokens=fields.max_tokens,
        deadline_s=fields.deadline_s,
    )
