"""The records: what travels between a model, an agent, an environment, a verifier and the store.

Everything here is frozen but `Trajectory`, which is one rollout while it happens. Records that come from outside, items
and task rows, keep the JSON they were read from: fields that nobody here knows pass through untouched, and nothing is
encoded twice.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import urandom
from time import perf_counter
from typing import Any, Literal, Protocol, Self, TypeVar, dataclass_transform

import msgspec
from msgspec import Raw, Struct

encode = msgspec.json.encode
decode = msgspec.json.decode
_fields = msgspec.json.Decoder(dict[str, Raw])


# Items: what a conversation is made of, as in OpenAI's Responses API.


class Part(Struct, frozen=True, omit_defaults=True):
    """One piece of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """One item of a conversation: typed fields over its own JSON."""

    id: str | None = None
    status: str | None = None

    @cached_property
    def json(self) -> Raw:
        """The item as its source wrote it, whole."""
        return Raw(encode(self))

    @cached_property
    def tokens(self) -> Tokens | None:
        """The engine's own tokens, where the model call that ended with this item recorded them."""
        # The search of the bytes spares most items the decoding.
        key = "generation_token_ids"
        if f'"{key}"'.encode() not in bytes(self.json) or key not in decode(self.json, type=dict[str, Raw]):
            return None
        return decode(self.json, type=Tokens)

    def with_tokens(self, tokens: Tokens) -> Self:
        fields = decode(self.json, type=dict[str, Raw]) | decode(encode(tokens), type=dict[str, Raw])
        return _keep(msgspec.structs.replace(self), Raw(encode(fields)))


class Message(Item, frozen=True, tag_field="type", tag="message", kw_only=True):
    """Somebody says something: user, assistant, system or developer."""

    role: str
    content: str | tuple[Part, ...] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or part.refusal or "" for part in self.content or ())


class FunctionCall(Item, frozen=True, tag_field="type", tag="function_call", kw_only=True):
    """The model calls a tool; `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str = "{}"
    call_id: str


class FunctionCallOutput(Item, frozen=True, tag_field="type", tag="function_call_output", kw_only=True):
    """What a tool answered."""

    call_id: str
    output: str | tuple[Part, ...]

    @property
    def text(self) -> str:
        if isinstance(self.output, str):
            return self.output
        return "".join(part.text or "" for part in self.output)


class Reasoning(Item, frozen=True, tag_field="type", tag="reasoning", kw_only=True):
    """What the model thought, where it shows it."""

    summary: tuple[Part, ...] = ()
    content: tuple[Part, ...] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text or "" for part in (self.content or self.summary))


class OtherItem(Item, frozen=True, kw_only=True):
    """An item of a kind this version does not know; only its JSON counts."""

    type: str


class _Kind(Struct):
    type: str = "message"


_kind = msgspec.json.Decoder(_Kind)
_item_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    "message": msgspec.json.Decoder(Message),
    "function_call": msgspec.json.Decoder(FunctionCall),
    "function_call_output": msgspec.json.Decoder(FunctionCallOutput),
    "reasoning": msgspec.json.Decoder(Reasoning),
}


_Record = TypeVar("_Record", bound=Struct)


def _keep(record: _Record, json: Raw) -> _Record:
    # A frozen struct's dictionary is where cached_property stores; filling it ahead keeps the source's own bytes.
    record.__dict__["json"] = json
    return record


def read_item(json: bytes | Raw) -> Item:
    """An item from its JSON. Raises `msgspec.ValidationError` where the fields of a known kind have wrong types."""
    # A Raw is a view into the body it came from; a copy lets that body go.
    raw = json.copy() if isinstance(json, Raw) else Raw(json)
    kind = _kind.decode(raw).type
    decoder = _item_decoders.get(kind)
    return _keep(OtherItem(type=kind) if decoder is None else decoder.decode(raw), raw)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str, *, id: str | None = None) -> Message:
    """An assistant's message in the shape in which the Responses API answers."""
    fields = {
        "id": id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return read_item(encode({key: value for key, value in fields.items() if value is not None}))  # type: ignore[return-value]


def call(name: str, call_id: str = "call_1", /, **arguments: Any) -> FunctionCall:
    return FunctionCall(name=name, arguments=encode(arguments).decode(), call_id=call_id)


class Tokens(Struct, frozen=True):
    """The engine's own tokens of one model call; what exact training needs."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]


class Usage(Struct, frozen=True):
    """Tokens counted over one model call or one rollout. `estimated` where the server did not count."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    @classmethod
    def estimate(cls, said: Sequence[Item], heard: Sequence[Item] = ()) -> Self:
        """The usual guess of four bytes a token, for a server that does not count; it is marked as one."""
        before, after = (sum(len(bytes(item.json)) for item in items) // 4 for items in (heard, said))
        return cls(before, after, estimated=True)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
        )

    def wire(self) -> dict[str, Any]:
        """As the Responses API writes it."""
        fields: dict[str, Any] = {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.total_tokens,
        }
        return fields | {"estimated": True} if self.estimated else fields


class Stop(enum.StrEnum):
    """Why a rollout ended."""

    DONE = "done"  # the model answered and called no tool
    ENVIRONMENT = "environment"  # the environment said that its world has ended
    MAX_TURNS = "max_turns"  # the agent's limit of model calls was reached
    MAX_TOOL_CALLS = "max_tool_calls"  # the agent's limit of tool calls was reached
    MAX_TOKENS = "max_tokens"  # the agent's budget of output tokens was spent
    DEADLINE = "deadline"  # the agent's own time was up; what it had done is rewarded
    LENGTH = "length"  # a reply was cut at max_output_tokens
    CONTEXT = "context"  # the conversation no longer fits the model's context
    CONTENT_FILTER = "content_filter"  # the provider withheld a reply
    FAILED = "failed"  # see the failure


class Reply(Struct, frozen=True):
    """What a model answered in one call."""

    items: tuple[Item, ...]
    usage: Usage = Usage()
    stop: Stop | None = None
    """Set where the reply cannot be followed by another turn."""
    fields: dict[str, Raw] = {}
    """The rest of the Responses API object: id, model, created_at, …"""

    @property
    def calls(self) -> list[FunctionCall]:
        return [item for item in self.items if isinstance(item, FunctionCall)]

    @property
    def text(self) -> str:
        return _final_text(self.items)


def _final_text(items: Sequence[Item]) -> str:
    for item in reversed(items):
        if isinstance(item, Message) and item.role == "assistant":
            return item.text
    return ""


# Tasks.


class AgentRef(Struct, frozen=True, omit_defaults=True):
    """Which agent a row asks for."""

    name: str
    type: str | None = None


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _TaskMeta(msgspec.StructMeta):
    """Tells type checkers what msgspec does: a subclass of `Task` is frozen without saying so."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        kind: Any = super().__new__(cls, name, bases, namespace, **options)
        taken = {word for base in bases if isinstance(base, cls) for word in dir(base)}
        for field in kind.__struct_fields__:
            if field in taken and not any(field in getattr(base, "__struct_fields__", ()) for base in bases):
                raise TypeError(
                    f"{name}: a task has `{field}` already; give yours another name, and say what the row calls it: "
                    f'msgspec.field(name="{field}")'
                )
        return kind


class Task(Struct, metaclass=_TaskMeta, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """One immutable problem: a row of a dataset.

    A subclass names the fields that its environment reads; all other fields of the row are kept, and `task["field"]`
    reads any of them.
    """

    responses_create_params: Raw
    agent_ref: AgentRef | None = None

    @classmethod
    def of(cls, prompt: str | Sequence[Item], /, **fields: Any) -> Self:
        """A task made in Python: what the model is asked, and the fields of the environment."""
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [item.json for item in prompt]
        return cls(responses_create_params=Raw(encode({"input": said})), **fields)

    @cached_property
    def fields(self) -> dict[str, Raw]:
        """Every field of the row, as JSON."""
        return _fields.decode(encode(self))

    @cached_property
    def identity(self) -> str:
        """A hash of the row as it was given: before overrides, whatever its spacing or key order, without `_ng_*`."""
        row = {key: decode(value) for key, value in self.fields.items() if not key.startswith("_ng_")}
        return hashlib.blake2b(encode(row, order="sorted"), digest_size=16).hexdigest()

    @cached_property
    def params(self) -> dict[str, Raw]:
        """What the model is asked besides the conversation: tools, temperature, …"""
        params = _fields.decode(self.responses_create_params)
        params.pop("input", None)
        return params

    @cached_property
    def prompt(self) -> tuple[Item, ...]:
        """The items that the conversation begins with."""
        given = _input.decode(self.responses_create_params).input
        if isinstance(given, str):
            return (user(given),)
        return tuple(read_item(raw) for raw in given)

    def with_params(self, overrides: Mapping[str, Any]) -> Self:
        """The same task asked with other parameters: a shallow merge, in which `overrides` win."""
        if not overrides:
            return self
        params = Raw(encode(_fields.decode(self.responses_create_params) | dict(overrides)))
        task = msgspec.structs.replace(self, responses_create_params=params)
        task.__dict__["identity"] = self.identity
        task.__dict__["fields"] = self.fields | {"responses_create_params": params}
        return task

    def __getitem__(self, key: str) -> Any:
        if key in self.fields:
            return decode(self.fields[key])
        # A declared field that the row leaves out has its default.
        if key in self.__struct_fields__:
            return getattr(self, key)
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self.fields or key in self.__struct_fields__ else default


class _Input(Struct):
    input: str | list[Raw]


_input = msgspec.json.Decoder(_Input)


T = TypeVar("T", bound=Task)


def read_task(row: bytes, kind: type[T]) -> T:
    """A task from a row of JSON. Raises `msgspec.ValidationError` that says which field is wrong."""
    if not row.isascii():
        # Also what nobody reads, and rollouts pass on, has to be text.
        row.decode()
    fields = _fields.decode(row)
    if "responses_create_params" not in fields:
        raise msgspec.ValidationError("the row has no `responses_create_params`")
    task = decode(row, type=kind)
    task.__dict__["fields"] = fields
    try:
        # Read now, and kept: what is wrong with a row is said while its place is known.
        _ = task.prompt
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"`responses_create_params`: {error}") from None
    return task


# One rollout, while it happens and afterwards.


class Spans(Protocol):
    """Hears how long everything took, each time, where a profile is made."""

    def add(self, stage: str, seconds: float, name: str = "") -> None:
        """`name` is a part of the stage: one tool of all, one reward, one reason to wait."""


class Trajectory:
    """One rollout while it happens: the agent appends, the environment reads, a crash keeps what is there."""

    spans: Spans | None = None

    def __init__(self, prompt: Sequence[Item] = ()) -> None:
        self.id = urandom(16).hex()
        self.prompt = tuple(prompt)
        self.items: list[Item] = []
        self.usage = Usage()
        self.turns = 0
        self.tool_calls = 0
        self.seconds: dict[str, float] = {}
        self.fields: dict[str, Raw] = {}
        self.asked: Task | None = None
        """The task as the model was asked it: with the tools that its world offered."""

    def add_reply(self, reply: Reply) -> None:
        self.items.extend(reply.items)
        self.usage += reply.usage
        self.fields = reply.fields
        self.turns += 1

    def add_output(self, output: FunctionCallOutput) -> None:
        self.items.append(output)
        self.tool_calls += 1

    def add_user(self, text: str) -> None:
        self.items.append(user(text))

    @property
    def answer(self) -> str:
        """The text of the last thing that the assistant said."""
        return _final_text(self.items)

    def timed(self, stage: str, name: str = "") -> Timed:
        """A context whose time is added to that of the stage; `name` is a part of it that a profile tells apart."""
        return Timed(self.seconds, stage, self.spans, name)

    def restore(self, rollout: Rollout) -> None:
        """Become what a stored rollout was when it ended."""
        self.items = list(rollout.response.output)
        self.usage, self.fields = rollout.response.usage, rollout.response.fields
        self.turns, self.tool_calls = rollout.turns, rollout.tool_calls

    def response(self) -> Response:
        return Response(tuple(self.items), self.usage, self.fields)


class Timed:
    """Counts the time until it is left, however that happens."""

    __slots__ = ("_began", "_name", "_seconds", "_spans", "_stage")

    def __init__(self, seconds: dict[str, float], stage: str, spans: Spans | None = None, name: str = "") -> None:
        self._seconds, self._stage, self._spans, self._name = seconds, stage, spans, name

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = perf_counter() - self._began
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + spent
        if self._spans is not None:
            self._spans.add(self._stage, spent, self._name)


class Response(Struct, frozen=True, dict=True):
    """What happened after the prompt: the items of every turn, tool outputs among them, and the sum of the usage."""

    output: tuple[Item, ...]
    usage: Usage = Usage()
    fields: dict[str, Raw] = {}

    @cached_property
    def output_text(self) -> str:
        """The final text."""
        return _final_text(self.output)

    @property
    def content(self) -> str:
        return self.output_text

    def wire(self) -> dict[str, Any]:
        """The Responses API object, with the final text beside it under both names that scripts read."""
        return {
            "object": "response",
            **self.fields,
            "output": [item.json for item in self.output],
            "output_text": self.output_text,
            "content": self.output_text,
            "usage": self.usage.wire(),
        }

    def __getitem__(self, key: str) -> Any:
        return decode(encode(self.wire()))[key]


class Reward(Struct, frozen=True):
    """What a rollout earned. `value` is the sum of `parts`; `metrics` are measured beside it and earn nothing."""

    value: float
    parts: dict[str, float] = {}
    metrics: dict[str, float] = {}
    notes: dict[str, Any] = {}
    """Whatever else the verifier says of the rollout and wants kept in its row."""

    def __post_init__(self) -> None:
        # What cannot be stored, and read again, is the verifier's failure, here, and not the store's, later.
        change = msgspec.structs.force_setattr
        change(self, "value", number("reward", self.value))
        change(self, "parts", {name: number(name, value) for name, value in self.parts.items()})
        change(self, "metrics", {name: number(name, value) for name, value in self.metrics.items()})
        if self.parts and not math.isclose(math.fsum(self.parts.values()), self.value, rel_tol=1e-6, abs_tol=1e-9):
            raise ValueError(f"the reward is {self.value}, but its parts add up to {math.fsum(self.parts.values())}")
        encode(self.notes)


def number(name: str, value: Any) -> float:
    """What somebody returned as a reward: a finite number of any kind, or a truth value."""
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} returned {type(value).__name__}; a reward is a number or a truth value")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; a reward is a finite number")
    return float(value)


Where = Literal["model", "environment", "tool", "verifier", "agent", "infrastructure"]


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why a rollout has no reward: where it happened, what kind it was, and whether another attempt can help."""

    where: Where
    kind: str
    detail: str
    retryable: bool = False
    retry_after_s: float | None = None


class Slot(Struct, frozen=True):
    """Planned work: one task, played once more. The indices are for people and trainers; the other four identify it."""

    agent: str
    task: str
    occurrence: int = 0
    repeat: int = 0
    task_index: int = 0
    rollout_index: int = 0

    @property
    def key(self) -> str:
        return f"{self.agent}/{self.task}/{self.occurrence}/{self.repeat}"


class Rollout(Struct, frozen=True):
    """The record of a slot played: with a reward, or with the failure that took its place."""

    slot: Slot
    task: Task
    response: Response
    stop: Stop
    model: str
    reward: Reward | None = None
    failure: Failure | None = None
    turns: int = 0
    tool_calls: int = 0
    attempt: int = 1
    seconds: dict[str, float] = {}


OURS = (
    "response",
    "reward",
    "reward_components",
    "usage",
    "agent_ref",
    "_ng_task_index",
    "_ng_rollout_index",
    "verification_skipped",
    "rollmill",
)
"""What a rollout writes over its input row. Every other field of the row survives, also where a metric has its name."""
