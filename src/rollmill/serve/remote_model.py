"""A model that a service of ours holds, as a model."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Raw

from rollmill.errors import ModelError, ModelFault, OutageError, RollmillError, RolloutError
from rollmill.model import Conversation
from rollmill.models.http import UNREADABLE, retry_after
from rollmill.models.openai import read_response
from rollmill.net.connection import Answer, LateError, WireError
from rollmill.serve import wire
from rollmill.serve.client import Client
from rollmill.serve.model import Added
from rollmill.types import Reply, Spans, decode, encode


class RemoteModel:
    """Posts conversations to `/v1/responses`. The service tries again what fails behind it; this does not."""

    def __init__(self, name: str, client: Client, spans: Spans | None = None, label: str = "") -> None:
        """`spans` hears under its `label` how long it took to answer."""
        self.name = name
        self._client, self._spans, self._label = client, spans, label or name

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__(*error)

    async def reply(self, conversation: Conversation) -> Reply:
        if self._spans is None:
            return await self._reply(conversation)
        began = perf_counter()
        try:
            return await self._reply(conversation)
        finally:
            self._spans.add("model", perf_counter() - began, self._label)

    async def _reply(self, conversation: Conversation) -> Reply:
        body = {**conversation.params, "model": self.name, "input": [item.json for item in conversation.items]}
        headers = {wire.CONVERSATION: conversation.id, wire.TURN: str(conversation.turn)}
        try:
            answer = await self._client.post("/v1/responses", encode(body), headers)
        except WireError as error:
            if not error.reached:
                # It was waited for; without it nothing can be played.
                raise OutageError(f"the model {self.name} at {self._client.url} cannot be reached: {error}") from None
            fault: ModelFault = "timeout" if isinstance(error, LateError) else "transport"
            raise ModelError(fault, f"{self._client.url}: {error}") from None
        if answer.status != 200:
            raise self._refusal(answer)
        return _whole(read_response(answer.body))

    def _refusal(self, answer: Answer) -> RollmillError:
        detail = f"{self._client.url} answered {answer.status}: {wire.said(answer.body)}"
        if stopping := wire.stopping(answer.body, detail):
            return stopping
        failure = wire.read_failure(answer.body)
        if failure is not None:
            return RolloutError(msgspec.structs.replace(failure, detail=detail))
        fault = _FAULTS.get(answer.status, "overload" if answer.status >= 500 else "caller")
        return ModelError(fault, detail, retry_after_s=retry_after(answer))


# What somebody's own program answers, that says nothing more of it.
_FAULTS: dict[int, ModelFault] = {
    **dict.fromkeys((401, 403, 404), "denied"),
    **dict.fromkeys((408, 504), "timeout"),
    429: "rate_limit",
}


def _whole(reply: Reply) -> Reply:
    """Without what the service added for others."""
    added = reply.fields.get("rollmill")
    if added is None:
        return reply
    try:
        known = decode(added, type=Added)
    except UNREADABLE as error:
        raise ModelError("malformed", f"`rollmill` in the answer is not what a service of ours says: {error}") from None
    fields: dict[str, Raw] = {
        name: raw for name, raw in reply.fields.items() if name != "rollmill" and name not in known.fields
    }
    return Reply(reply.items, reply.usage, known.stop, fields)
