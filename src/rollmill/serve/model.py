"""A model as a service: the Responses API and Chat Completions, whatever the model speaks itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from msgspec import Raw, Struct

from rollmill.errors import RolloutError, boundary
from rollmill.model import Conversation, Model
from rollmill.serve import chat, events, schemas, wire
from rollmill.serve.app import App, Route
from rollmill.serve.guard import Guard
from rollmill.serve.http import EVENTS, JSON, Answer, Problem, Request, cookie_name, invalid, json, set_cookie
from rollmill.serve.openapi import Operation
from rollmill.store.schema import UNREADABLE
from rollmill.types import Item, Reply, Response, Stop, encode, read_item, user

_OF_MODEL = (400, 429, 502, 503, 504)
_RESPONSE = {"type": "object", "required": ["id", "object", "output"]}


class _Asked(Struct):
    """A request of the Responses API, as far as it is checked; the rest is the model's own affair."""

    input: str | list[Raw]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    instructions: str | None = None
    metadata: dict[str, str] | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None


_NOT_PASSED = {"input", "model", "stream", "stream_options"}


class ModelService:
    """Serves one model under its own name, whatever name is asked for."""

    def __init__(self, name: str, model: Model, *, guard: Guard = Guard(), hide: Callable[[str], str] = str) -> None:
        self.name = name
        self._model = model
        self._cookie = cookie_name(type(model), name)
        self._began = int(time.time())
        self._hide = hide
        self.app = App(name, self._routes(), guard=guard, hide=hide)

    def _routes(self) -> list[Route]:
        asked, chatted = schemas.of(_Asked, input=schemas.INPUT), schemas.of(chat.Asked)
        both = (JSON, EVENTS.partition(";")[0])
        answered = Operation("Answer a conversation", asked, _RESPONSE, problems=_OF_MODEL, content_types=both)
        completed = Operation("Answer a chat", chatted, problems=_OF_MODEL, content_types=both)
        return [
            Route("POST", "/v1/responses", self._respond, answered, long=True),
            Route("POST", "/v1/chat/completions", self._complete, completed, long=True),
            Route("GET", "/v1/models", self._list, Operation("The model's name")),
        ]

    async def _respond(self, request: Request) -> Answer:
        asked = request.read(_Asked)
        fields = request.read(dict[str, Raw])
        params = {name: raw for name, raw in fields.items() if name not in _NOT_PASSED}
        try:
            reply = await self._reply(request, Conversation(_items(asked.input), params))
        except Problem as problem:
            if not asked.stream:
                raise
            blank = response_of(Reply(()), self._model.name, fields)
            said = self._hide(problem.message)
            return Answer(content_type=EVENTS, stream=events.named(events.failed(said, problem.code, blank)))
        response = response_of(reply, self._model.name, fields)
        headers = (self._set_cookie(request),)
        if asked.stream:
            return Answer(content_type=EVENTS, headers=headers, stream=events.named(events.of_response(response)))
        return Answer(encode(response), headers=headers)

    async def _complete(self, request: Request) -> Answer:
        asked = request.read(chat.Asked)
        reply = await self._reply(request, chat.conversation(asked, request.read(dict[str, Raw])))
        whole = chat.completion(reply, self._model.name)
        headers = (self._set_cookie(request),)
        if asked.stream:
            usage = bool((asked.stream_options or {}).get("include_usage"))
            pieces = events.unnamed(chat.chunks(whole, usage=usage))
            return Answer(content_type=EVENTS, headers=headers, stream=pieces)
        return Answer(encode(whole), headers=headers)

    async def _list(self, _: Request) -> Answer:
        model = {"id": self._model.name, "object": "model", "created": self._began, "owned_by": "rollmill"}
        return json({"object": "list", "data": [model]})

    async def _reply(self, request: Request, asked: Conversation) -> Reply:
        given = request.headers.get(wire.TURN, "")
        # Whoever does not say which turn it is has what was said before in its conversation.
        turn = int(given) if given.isdecimal() and len(given) < 9 else wire.counted(asked.items).turns
        id = request.headers.get(wire.CONVERSATION) or request.cookie(self._cookie)
        try:
            with boundary("model"):
                return await self._model.reply(Conversation(asked.items, asked.params, id, turn))
        except RolloutError as error:
            raise wire.failed(error.failure) from error

    def _set_cookie(self, request: Request) -> tuple[str, str]:
        """What keeps a client that sends it back on one replica of the model."""
        return set_cookie(self._cookie, request.cookie(self._cookie) or uuid4().hex)


def response_of(reply: Reply, model: str, asked: Mapping[str, Raw]) -> dict[str, Any]:
    """A reply as an object of the Responses API, with every field that its clients insist on.

    `rollmill` says which of them the model did not give, and why a reply ended that cannot be said in another way.
    """
    fields = {name: raw for name, raw in reply.fields.items() if name != "rollmill"}
    cut = {Stop.CONTENT_FILTER: "content_filter"}.get(reply.stop, "max_output_tokens") if reply.stop else None
    wanted: dict[str, Any] = {
        "id": f"resp_{uuid4().hex}",
        "created_at": int(time.time()),
        "model": model,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
    }
    added = [name for name in wanted if name not in fields]
    whole = Response(reply.items, reply.usage, fields).wire() | {name: wanted[name] for name in added}
    del whole["content"]
    return whole | {"rollmill": Added(added, reply.stop)}


class Added(Struct, frozen=True, omit_defaults=True):
    """What a response has beside what the model gave."""

    fields: list[str]
    stop: Stop | None = None


def _items(given: str | list[Raw]) -> tuple[Item, ...]:
    if isinstance(given, str):
        return (user(given),)
    try:
        return tuple(map(read_item, given))
    except UNREADABLE as error:
        raise invalid(f"`input`: {error}") from None
