"""A model behind OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from rollmill.errors import ModelError
from rollmill.model import Conversation, Secret
from rollmill.models.http import UNREADABLE, ContextOverflowError, HttpClient, HttpModel
from rollmill.net.connection import CallDeadlines
from rollmill.types import Item, Reply, Stop, Usage, encode, read_item


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    openai_base_url: str | list[str]
    openai_api_key: Secret
    openai_model: str
    extra_body: dict[str, Any] = {}
    deadlines: CallDeadlines = CallDeadlines()


def make(fields: Fields) -> OpenAI:
    return OpenAI(
        fields.openai_model,
        fields.openai_base_url,
        fields.openai_api_key.reveal(),
        extra_body=fields.extra_body,
        deadlines=fields.deadlines,
    )


class OpenAI(HttpModel):
    """Posts conversations as they are: no item is encoded again, no field is translated."""

    def __init__(
        self,
        model: str,
        base_url: str | Sequence[str] = "https://api.openai.com/v1",
        api_key: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        deadlines: CallDeadlines = CallDeadlines(),
    ) -> None:
        bearer = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        given = bearer if headers is None else headers
        super().__init__(model, HttpClient(base_url, headers=given, query=query, secret=api_key, deadlines=deadlines))
        self._extra = dict(extra_body or {})

    async def reply(self, conversation: Conversation) -> Reply:
        said = [item.json for item in conversation.items]
        # What a row asks wins over what is set for all, but for the model's name.
        body = {**self._extra, **conversation.params, "model": self.name, "input": said}
        try:
            answer = await self._client.post("/responses", encode(body), conversation=conversation.id)
        except ContextOverflowError:
            return Reply((), stop=Stop.CONTEXT)
        return read_response(answer)


class _Details(Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    estimated: bool = False


class _Incomplete(Struct):
    reason: str | None = None


class _Error(Struct):
    code: str | None = None
    message: str | None = None


_fields = msgspec.json.Decoder(dict[str, Raw])
_output = msgspec.json.Decoder(list[Raw])
_counts = msgspec.json.Decoder(_Usage | None)
_error = msgspec.json.Decoder(_Error | None)
_incomplete = msgspec.json.Decoder(_Incomplete | None)
_NULL = Raw(b"null")

# The fields of a reply are parts of the body; up to this many bytes, it costs less to keep the body than to copy them.
_SMALL = 4096


def read_response(body: bytes) -> Reply:
    """A Responses API object as a reply. What is no such object is a malformed answer."""
    try:
        # A server may print its JSON over many lines, and items keep theirs: a record is one line.
        if not body.isascii():
            # What passes through as it came is looked at nowhere else.
            body.decode()
        if b"\n" in body or b"\r" in body:
            body = msgspec.json.format(body, indent=-1)
        fields = _fields.decode(body)
        items = tuple(map(read_item, _output.decode(fields.pop("output"))))
        usage = _counts.decode(fields.pop("usage", _NULL))
        error = _error.decode(fields.get("error", _NULL))
        incomplete = _incomplete.decode(fields.get("incomplete_details", _NULL))
    except KeyError:
        raise ModelError("malformed", "the answer is no Responses API object: it has no `output`") from None
    except UNREADABLE as fault:
        raise ModelError("malformed", f"the answer is no Responses API object: {fault}") from None
    if error is not None:
        raise _failed(error)
    fields.pop("output_text", None)
    rest = fields if len(body) <= _SMALL else {key: value.copy() for key, value in fields.items()}
    return Reply(items, _usage(usage, items), _stop(incomplete), rest)


def _failed(error: _Error) -> ModelError:
    detail = f"the model's provider reports: {error.message or error.code}"
    match error.code:
        case "rate_limit_exceeded":
            return ModelError("rate_limit", detail)
        case str(code) if code.startswith(("invalid_", "image_")):
            return ModelError("caller", detail)
    return ModelError("overload", detail)


def _stop(incomplete: _Incomplete | None) -> Stop | None:
    if incomplete is None or incomplete.reason is None:
        return None
    return Stop.CONTENT_FILTER if incomplete.reason == "content_filter" else Stop.LENGTH


def _usage(usage: _Usage | None, items: Sequence[Item]) -> Usage:
    if usage is None:
        return Usage.estimate(items)
    heard, said = usage.input_tokens_details or _Details(), usage.output_tokens_details or _Details()
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        heard.cached_tokens or 0,
        said.reasoning_tokens or 0,
        usage.estimated,
    )
