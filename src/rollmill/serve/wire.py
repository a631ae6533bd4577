"""The bodies that services and stand-ins exchange: a response, a verdict, a failure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct, ValidationError

from rollmill.errors import CallerError, ConfigError, ContractError, ModelFault, OutageError
from rollmill.serve.http import Problem
from rollmill.store.schema import UNREADABLE, read_usage
from rollmill.types import (
    Failure,
    FunctionCallOutput,
    Item,
    Response,
    Reward,
    Usage,
    decode,
    encode,
    read_item,
)

ENDED = "x-rollmill-ended"
"""The header of a tool's answer after which the world has ended."""
CALL = "x-rollmill-call"
"""The header of a tool call with the id that the model gave it."""
CONVERSATION = "x-rollmill-conversation"
TURN = "x-rollmill-turn"
"""The headers of a model call: which conversation it goes on, and how often the model has answered in it."""
COUNTS = "x-rollmill-counts"
"""The header of a verification: how often the model has answered, and how many of its calls were answered."""
OURS = ("x-rollmill", "1")
"""The header by which our verdicts and rollouts are told from others, who may echo a row with fields of ours."""


MALFORMED = (*UNREADABLE, ValueError, TypeError, LookupError)
"""What making a record of somebody else's JSON can raise."""


class Counts(Struct, frozen=True):
    """What a response does not say of how it came about."""

    turns: int = 0
    tool_calls: int = 0

    def header(self) -> str:
        return f"{self.turns} {self.tool_calls}"


def read_counts(header: str) -> Counts | None:
    words = header.split()
    known = len(words) == 2 and all(word.isdecimal() and len(word) < 10 for word in words)
    return Counts(int(words[0]), int(words[1])) if known else None


class Judged(Struct, frozen=True):
    """Which of a verdict's fields were measured, and which were said."""

    metrics: dict[str, float] = {}
    added: list[str] = []


class Described(Struct, frozen=True):
    """What an environment service says of itself."""

    environment: str
    domain: str = "other"
    verification: str = "unsupported"
    version: str = "1"
    tools: Raw = Raw(b"[]")
    user: bool = False
    """Whether somebody answers when the assistant has spoken."""


def checked(body: bytes) -> bytes:
    """JSON that somebody else wrote. Raises `UnicodeDecodeError`, also for what nobody reads and passes through."""
    if not body.isascii():
        body.decode()
    return body


def read_response(json: Raw | bytes) -> Response:
    """A Responses API object. Raises what is in `UNREADABLE`."""
    fields = decode(json, type=dict[str, Raw])
    if "output" not in fields:
        raise ValidationError("it has no `output`")
    items = tuple(read_item(raw) for raw in decode(fields.pop("output"), type=list[Raw]))
    usage = fields.pop("usage", None)
    for ours in ("output_text", "content"):
        fields.pop(ours, None)
    known = Usage() if usage is None or bytes(usage) == b"null" else read_usage(usage)
    return Response(items, known, {name: value.copy() for name, value in fields.items()})


def counted(items: Sequence[Item]) -> Counts:
    """How often a model has answered, and how many calls were answered to it, as far as the items tell."""
    turns, was_model = 0, False
    for item in items:
        is_model = said_by_model(item)
        turns += is_model and not was_model
        was_model = is_model
    return Counts(turns, sum(isinstance(item, FunctionCallOutput) for item in items))


def said_by_model(item: Item) -> bool:
    return not isinstance(item, FunctionCallOutput) and getattr(item, "role", "assistant") == "assistant"


def verdict(row: Mapping[str, Raw], reward: Reward) -> dict[str, Any]:
    """What `/verify` answers: the row, with what the verifier says of it beside its fields."""
    found = {**reward.metrics, **reward.notes}
    added = [name for name in found if name not in row]
    body: dict[str, Any] = {**row} | {name: found[name] for name in added} | {"reward": reward.value}
    if reward.parts:
        body["reward_components"] = reward.parts
    return body | {"rollmill": Judged(reward.metrics, added)}


_NOT_SAID = frozenset(("reward", "reward_components", "response", "responses_create_params", "rollmill"))


def read_verdict(body: bytes, given: Iterable[str], *, ours: bool = False) -> Reward:
    """The reward in what any system's `/verify` answers to a row of these fields. Raises what is in `MALFORMED`."""
    fields = decode(checked(body), type=dict[str, Raw])
    if "reward" not in fields:
        raise ValueError("the answer has no `reward`")
    value = decode(fields["reward"], type=float)
    parts = decode(fields["reward_components"], type=dict[str, float]) if "reward_components" in fields else {}
    if ours and "rollmill" in fields:
        judged = decode(fields["rollmill"], type=Judged)
        notes = {name: decode(fields[name]) for name in judged.added if name not in judged.metrics}
        return Reward(value, parts, judged.metrics, notes)
    known = _NOT_SAID.union(given)
    said = {name: decode(raw) for name, raw in fields.items() if name not in known and not name.startswith("_ng_")}
    metrics = {name: float(one) for name, one in said.items() if isinstance(one, int | float)}
    notes = {name: one for name, one in said.items() if name not in metrics and one is not None}
    try:
        return Reward(value, parts, metrics, notes)
    except ValueError:
        # Components of another system need not add up to its reward: then they were measured beside it.
        return Reward(value, {}, metrics | parts, notes)


_OF_MODEL: dict[ModelFault | str, int] = {
    "caller": 400,
    "denied": 403,
    "rate_limit": 429,
    "overload": 503,
    "transport": 502,
    "timeout": 504,
    "malformed": 502,
}
# A stored rollout that its world does not answer as it did is the client's.
_OF_OTHERS = {"timeout": 504, "replay_differs": 422}


def failed(failure: Failure, **more: Any) -> Problem:
    """A failure with its address, as a service tells of it."""
    known = _OF_MODEL if failure.where == "model" else _OF_OTHERS
    status = known.get(failure.kind, 500)
    after = failure.retry_after_s
    headers = () if after is None else (("Retry-After", str(math.ceil(after))),)
    message = f"{failure.where}: {failure.detail}"
    return Problem(
        status, f"{failure.where}_{failure.kind}", message, more={"failure": failure, **more}, headers=headers
    )


class _Error(Struct, frozen=True):
    message: str = ""
    code: str | int | None = None


class _Told(Struct, frozen=True):
    failure: Failure | None = None


class _Wrong(Struct, frozen=True):
    error: _Error


def code(body: bytes) -> str:
    """The word by which an answer says what is wrong, if it does."""
    try:
        return str(decode(body, type=_Wrong).error.code or "")
    except UNREADABLE:
        return ""


_STOPS_THE_RUN: dict[str, type[CallerError | OutageError]] = {
    "outage": OutageError,
    "config": ConfigError,
    "contract": ContractError,
    "no_token": ConfigError,
}


def stopping(body: bytes, said: str) -> CallerError | OutageError | None:
    """What every other request would come to, too, where an answer tells of that."""
    kind = _STOPS_THE_RUN.get(code(body))
    return kind(said) if kind else None


def said(body: bytes) -> str:
    """What an answer says is wrong, in one line."""
    try:
        text = decode(body, type=_Wrong).error.message
    except UNREADABLE:
        text = body[:2000].decode("utf-8", "replace")
    return " ".join(text.split())[:400] or "nothing"


def read_failure(body: bytes) -> Failure | None:
    """The failure that a service of ours tells of, if it does."""
    try:
        return decode(body, type=_Told).failure
    except UNREADABLE:
        return None


def row_body(fields: Mapping[str, Raw], **more: Any) -> bytes:
    return encode({**fields, **more})
