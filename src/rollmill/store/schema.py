"""A rollout as one row of JSON, and back.

The row is the input row, whole, with what happened beside it: `response`, `reward`, the metrics by name, `usage`,
`agent_ref`, the `_ng_*` indices that trainers read, and one block of our own, `rollmill`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from rollmill.types import (
    OURS,
    Failure,
    Response,
    Reward,
    Rollout,
    Slot,
    Stop,
    T,
    Usage,
    decode,
    encode,
    read_item,
    read_task,
)

SCHEMA = 1
_SKIPPED = "verification_skipped"


class SlotKey(Struct, frozen=True):
    """What identifies a slot in a row."""

    agent: str
    task: str
    occurrence: int
    repeat: int


class Block(Struct, frozen=True):
    """The `rollmill` block: what the row's other fields do not say."""

    slot: SlotKey
    stop: Stop
    model: str
    run: str
    turns: int
    tool_calls: int
    attempt: int
    seconds: dict[str, float]
    metrics: dict[str, float] = {}
    added: list[str] = []
    """The fields of the row that came from the verifier, not from the input."""
    schema: int = SCHEMA


class _Details(Struct, frozen=True):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    estimated: bool = False

    @property
    def cached_tokens(self) -> int:
        return self.input_tokens_details.cached_tokens if self.input_tokens_details else 0

    @property
    def reasoning_tokens(self) -> int:
        return self.output_tokens_details.reasoning_tokens if self.output_tokens_details else 0


class Summary(Struct, frozen=True):
    """A row as far as counting needs it; the large fields are skipped, not decoded."""

    reward: float
    rollmill: Block
    task_index: int = msgspec.field(name="_ng_task_index")
    rollout_index: int = msgspec.field(name="_ng_rollout_index")
    usage: _Usage = _Usage()
    reward_components: dict[str, float] = {}
    verification_skipped: bool = False
    task_name: Any = None
    dataset: Any = None

    @property
    def slot(self) -> Slot:
        key = self.rollmill.slot
        return Slot(key.agent, key.task, key.occurrence, key.repeat, self.task_index, self.rollout_index)


class Entry(Struct, frozen=True):
    """One attempt as far as counting needs it: rewarded, or with the failure that took the reward's place."""

    slot: Slot
    stop: str
    reward: float | None = None
    """None also where verification was deferred: no metric counts a placeholder."""
    parts: dict[str, float] = {}
    metrics: dict[str, float] = {}
    failure: Failure | None = None
    model: str = ""
    attempt: int = 1
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    seconds: dict[str, float] = {}
    labels: dict[str, str] = {}
    """What the row says it belongs to: `task_name`, `dataset`."""
    run: str = ""
    empty: bool = False
    """Whether the final answer says nothing; known while it is played only."""


_summary = msgspec.json.Decoder(Summary)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON that somebody else wrote can raise."""
_LABELS = ("task_name", "dataset")


def read_summary(row: bytes) -> Summary:
    """Raises `msgspec.DecodeError` for what is no row of ours."""
    return _summary.decode(row)


def is_json(content: bytes) -> bool:
    try:
        msgspec.json.decode(content)
    except UNREADABLE:
        return False
    return True


def stored_entry(row: bytes) -> Entry:
    """What counting needs of a stored row. Raises as `read_summary` does."""
    summary = read_summary(row)
    block, usage = summary.rollmill, summary.usage
    return Entry(
        slot=summary.slot,
        stop=str(block.stop),
        reward=None if summary.verification_skipped else summary.reward,
        parts=summary.reward_components,
        metrics=block.metrics,
        model=block.model,
        attempt=block.attempt,
        turns=block.turns,
        tool_calls=block.tool_calls,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        seconds=block.seconds,
        labels={
            name: label
            for name in _LABELS
            if isinstance(label := getattr(summary, name), str) and name not in block.added
        },
        run=block.run,
    )


def entry_of(rollout: Rollout, run: str = "") -> Entry:
    """What counting needs of a rollout that has just ended."""
    usage, reward = rollout.response.usage, rollout.reward
    skipped = reward is None or bool(reward.notes.get(_SKIPPED))
    return Entry(
        slot=rollout.slot,
        stop=str(rollout.stop),
        reward=None if skipped or reward is None else reward.value,
        parts=reward.parts if reward else {},
        metrics=reward.metrics if reward else {},
        failure=rollout.failure,
        model=rollout.model,
        attempt=rollout.attempt,
        turns=rollout.turns,
        tool_calls=rollout.tool_calls,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        seconds=rollout.seconds,
        labels=_labels(rollout.task.fields),
        run=run,
        empty=not rollout.response.output_text,
    )


def _labels(fields: Mapping[str, Raw]) -> dict[str, str]:
    if fields.keys().isdisjoint(_LABELS):
        return {}
    given = {name: decode(fields[name]) for name in _LABELS if name in fields}
    return {name: label for name, label in given.items() if isinstance(label, str)}


def write_row(rollout: Rollout, run: str) -> bytes:
    """The row of a rollout that ended with a reward, without its newline."""
    reward = rollout.reward
    if reward is None:
        raise ValueError("a rollout without a reward has no row")
    slot = rollout.slot
    row: dict[str, Any] = {**rollout.task.fields}
    # The row may have been a rollout, of a run that put verification off; this one's reward is its own.
    row.pop(_SKIPPED, None)
    found = {**reward.metrics, **reward.notes}
    added = [name for name in found if name not in row]
    block = Block(
        slot=SlotKey(slot.agent, slot.task, slot.occurrence, slot.repeat),
        stop=rollout.stop,
        model=rollout.model,
        run=run,
        turns=rollout.turns,
        tool_calls=rollout.tool_calls,
        attempt=rollout.attempt,
        seconds=rollout.seconds,
        metrics=reward.metrics,
        added=added,
    )
    row |= {name: found[name] for name in added}
    row["response"] = rollout.response.wire()
    row["reward"] = reward.value
    if reward.parts:
        row["reward_components"] = reward.parts
    row["usage"] = rollout.response.usage.wire()
    row["agent_ref"] = {"type": "responses_api_agents", "name": slot.agent}
    row["_ng_task_index"] = slot.task_index
    row["_ng_rollout_index"] = slot.rollout_index
    row["rollmill"] = block
    return one_line(encode(row))


def one_line(json: bytes) -> bytes:
    """JSON without line breaks: what was passed through untouched may have been written over several lines."""
    return msgspec.json.format(json, indent=-1) if b"\n" in json or b"\r" in json else json


def read_row(row: bytes, kind: type[T]) -> Rollout:
    """A stored rollout. Its task is the row's input part, so that it can be verified or played again."""
    summary = read_summary(row)
    fields = decode(row, type=dict[str, Raw])
    response = decode(fields["response"], type=dict[str, Raw])
    items = tuple(read_item(raw) for raw in decode(response["output"], type=list[Raw]))
    block = summary.rollmill
    given = {name: value for name, value in fields.items() if name not in OURS and name not in block.added}
    task = read_task(encode(given), kind)
    # The row was overridden before it was played; its identity is the one that it was planned under.
    task.__dict__["identity"] = block.slot.task
    rest = {
        name: value for name, value in response.items() if name not in ("output", "output_text", "content", "usage")
    }
    notes = {name: decode(fields[name]) for name in block.added if name not in block.metrics}
    return Rollout(
        slot=summary.slot,
        task=task,
        response=Response(items, _usage(summary.usage), rest),
        stop=block.stop,
        model=block.model,
        reward=Reward(summary.reward, summary.reward_components, block.metrics, notes),
        turns=block.turns,
        tool_calls=block.tool_calls,
        attempt=block.attempt,
        seconds=block.seconds,
    )


def read_usage(json: bytes | Raw) -> Usage:
    """Tokens as the Responses API writes them. Raises `msgspec.DecodeError`."""
    return _usage(decode(json, type=_Usage))


def _usage(stored: _Usage) -> Usage:
    return Usage(
        stored.input_tokens,
        stored.output_tokens,
        stored.cached_tokens,
        stored.reasoning_tokens,
        stored.estimated,
    )
