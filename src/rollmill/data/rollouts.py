"""Rollout rows from a file, of any origin, as far as they are counted; one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, field

from rollmill.errors import ConfigError
from rollmill.quality.rows import LARGEST, Places, asked, counted, given
from rollmill.quality.tally import Counted
from rollmill.taskset import read_rows
from rollmill.types import AgentRef, decode

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON that somebody else wrote can raise."""
_SMALL = frozenset(b"-0123456789tf")
"""What a number or a truth value begins with."""


_Index = Annotated[int, Meta(ge=0, le=LARGEST)]


class Row(NamedTuple):
    """A rollout."""

    line: int
    content: bytes
    task_index: int
    rollout_index: int
    agent: str
    small: Mapping[str, Any]
    """Everything that counting needs."""
    fields: Mapping[str, Raw]

    @property
    def counted(self) -> Counted:
        return counted(self.small)

    @property
    def given(self) -> dict[str, Raw]:
        """The fields that its input had."""
        return given({**self.fields, "rollmill": self.small["rollmill"]})

    @property
    def identity(self) -> str | None:
        """The hash of its input, where the row says it."""
        slot = (self.small["rollmill"] or {}).get("slot")
        task = slot.get("task") if isinstance(slot, dict) else None
        return task if isinstance(task, str) else None

    @property
    def asked(self) -> bytes | None:
        """A hash of what the model was asked."""
        return asked({"responses_create_params": params_of(self.fields)})

    @property
    def indexed(self) -> bool:
        """Whether it says itself which task it is of."""
        return self.small["_ng_task_index"] is not None


class Head(Struct):
    """Who a row is of."""

    agent_ref: AgentRef | None = None
    task_index: _Index | None = field(name="_ng_task_index", default=None)
    rollout_index: _Index | None = field(name="_ng_rollout_index", default=None)

    @property
    def agent(self) -> str:
        return self.agent_ref.name if self.agent_ref else ""


def read_rollouts(path: Path) -> Iterator[Row]:
    """Raises `ConfigError` that names the line of a row that is none."""
    places, indexed = Places(), None
    for line, content in read_rows(path):
        place = f"{path}, line {line}"
        fields, head = read_fields(content, place), read_as(content, _Rollout, place)
        if "reward" not in fields:
            raise ConfigError(f"{place}: no rollout: it has no reward")
        if indexed is None:
            indexed = head.task_index is not None
        if indexed is not (head.task_index is not None):
            raise ConfigError(f"{place}: every row has a _ng_task_index or none has, and here the first differs")
        small = _numbers(fields) | msgspec.to_builtins(head)
        if not indexed:
            small["responses_create_params"] = params_of(fields)
        yield Row(line, content, *places.of(small), head.agent, small, fields)


def params_of(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """What the model was asked with; nothing where that is no object."""
    try:
        return decode(fields.get("responses_create_params", b"{}"), type=dict[str, Raw])
    except msgspec.ValidationError:
        return {}


def read_fields(content: bytes, place: str) -> dict[str, Raw]:
    """The fields of a row, which stands at `place`."""
    return read_as(content, dict[str, Raw], place)


def read_as(content: bytes, kind: type[T], place: str) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {error}") from None
    except UNREADABLE as error:
        raise ConfigError(f"{place}: not JSON: {error}") from None


class _Response(Struct):
    usage: dict[str, Any] | None = None


class _Rollout(Head):
    """What counts of a row, and is more than a number."""

    response: _Response | None = None
    usage: dict[str, Any] | None = None
    reward_components: dict[str, Any] | None = None
    rollmill: dict[str, Any] | None = None


def _numbers(fields: Mapping[str, Raw]) -> dict[str, Any]:
    return {name: decode(value) for name, value in fields.items() if memoryview(value)[0] in _SMALL}
