"""A model: a conversation in, a reply out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Raw, Struct

from rollmill.types import Item, Reply, Usage, assistant, encode


class Conversation(Struct, frozen=True):
    """What a model is asked: everything said so far, and how to answer."""

    items: Sequence[Item]
    params: Mapping[str, Raw] = {}
    """Tools, temperature and whatever else the row's `responses_create_params` holds, as JSON."""
    id: str = ""
    """The same for every turn of one rollout, so that a backend can keep it on one replica."""
    turn: int = 0


class Model(Protocol):
    """What plays: a model of any kind, anywhere.

    A backend that holds connections or memory is an async context manager too; one that can tell early that it will not
    work is an `Endpoint`.
    """

    name: str

    async def reply(self, conversation: Conversation) -> Reply:
        """Answer. Raises `ModelError`; a conversation that no longer fits is a reply with `Stop.CONTEXT`."""
        ...


@runtime_checkable
class Endpoint(Protocol):
    """A model that lives elsewhere."""

    async def check(self) -> None:
        """Raise `ConfigError` if it cannot be reached or refuses the key; also before the model is entered."""
        ...


MASK = "***"


class Secret:
    """A key, shown only to who asks for it by name; no encoder accepts it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How to sample, said once for all tasks; it wins over what a task's row says."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Any = None
    reasoning: dict[str, Any] | None = None
    other: dict[str, Any] = {}
    """Any other parameter of the Responses API."""

    def overrides(self) -> dict[str, Any]:
        known: dict[str, Any] = msgspec.to_builtins(self)
        return self.other | {name: value for name, value in known.items() if name != "other"}


Line: TypeAlias = str | Item | Sequence[Item] | Reply


class Scripted:
    """A model that says what it is told to: one line a turn, the last one from then on; or what a function answers.

    A line is a text, an item, several items, or a whole `Reply`.
    """

    def __init__(self, *lines: Line | Callable[[Conversation], Line], name: str = "scripted") -> None:
        self.name = name
        self._lines = lines or ("ok",)

    async def reply(self, conversation: Conversation) -> Reply:
        line = self._lines[min(conversation.turn, len(self._lines) - 1)]
        reply = _as_reply(line(conversation) if callable(line) else line)
        usage = Usage.estimate(reply.items, conversation.items)
        fields = {"id": f"resp_{conversation.turn}", "model": self.name, "status": "completed"}
        raw = {key: Raw(encode(value)) for key, value in fields.items()}
        return Reply(reply.items, reply.usage if reply.usage != Usage() else usage, reply.stop, raw | reply.fields)


def _as_reply(line: Line) -> Reply:
    if isinstance(line, Reply):
        return line
    if isinstance(line, str):
        return Reply((assistant(line),))
    return Reply((line,) if isinstance(line, Item) else tuple(line))
