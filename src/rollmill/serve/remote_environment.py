"""An environment behind HTTP, ours or anybody's, as an environment."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

from msgspec import Raw, Struct

from rollmill.environment import Compute, Environment, World
from rollmill.errors import OutageError, RollmillError, RolloutError, ToolError, boundary
from rollmill.models.http import retry_after
from rollmill.net.connection import Answer, LateError, WireError
from rollmill.serve import wire
from rollmill.serve.client import Client
from rollmill.serve.environment import RESERVED
from rollmill.serve.sessions import SESSION_ENDED
from rollmill.store.schema import UNREADABLE
from rollmill.tools import not_json
from rollmill.types import Failure, FunctionCall, FunctionCallOutput, Reward, Task, Where, decode, encode

_TOLD_TO_THE_MODEL = (400, 404, 422)
"""What a tool answers with these is the model's own mistake; every other status is a failure."""
_SAYS_NOTHING_NOW = (401, 403, 408, 421, 429, 502, 503, 504)
"""With these a service tells nothing of what it is; with any other that it has nothing to tell."""


class RemoteWorld:
    """Where worlds are made that live behind a service."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._described: wire.Described | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[World]:
        async with self.client:
            yield functools.partial(RemoteEnvironment, service=self)

    async def described(self) -> wire.Described:
        """What the service says of itself; of one that says nothing, nothing is known."""
        if self._described is None:
            answer = await self.client.get("/environment")
            if answer.status in _SAYS_NOTHING_NOW:
                raise refusal(answer, f"{self.client.url}/environment", "environment")
            self._described = wire.Described("")
            with suppress(*UNREADABLE):
                self._described = decode(answer.body, type=wire.Described)
        return self._described


class RemoteEnvironment(Environment[Task]):
    """One session of a service."""

    def __init__(self, task: Task, *, service: RemoteWorld) -> None:
        super().__init__(task)
        self._service, self._client = service, service.client
        self._cookies: dict[str, str] = {}
        self._offer: Raw | None = None
        self._known: tuple[str, ...] | None = None
        self._has_user = False

    async def setup(self) -> None:
        described = await self._asked(self._service.described(), "environment")
        self._has_user = described.user
        self._offer = described.tools if bytes(described.tools) != b"[]" else None
        known = self.task.params.get("tools") or self._offer or (b"[]" if described.environment else None)
        self._known = None if known is None else _names(known)
        await self._posted("environment", "/seed_session", wire.row_body(self.task.fields))

    def offered_tools(self) -> Raw | None:
        return self._offer

    async def call(self, call: FunctionCall) -> FunctionCallOutput:
        with self.trajectory.timed("tools", call.name), boundary("tool"):
            try:
                self._check(call)
            except ToolError as error:
                output = encode({"error": str(error)}).decode()
                return FunctionCallOutput(call_id=call.call_id, output=output, status="incomplete")
            body, id = (call.arguments or "{}").encode(), {wire.CALL: call.call_id}
            answer = await self._posted("tool", f"/{quote(call.name, safe='')}", body, id, known=_TOLD_TO_THE_MODEL)
            output = answer.body.decode("utf-8", "replace")
            status = None if answer.status == 200 else "incomplete"
            return FunctionCallOutput(call_id=call.call_id, output=output, status=status)

    def _check(self, call: FunctionCall) -> None:
        # The service has other paths beside its tools, and what a model writes must not reach them.
        if call.name in RESERVED or (self._known is not None and call.name not in self._known):
            raise ToolError(f"Unknown tool: {call.name}. The tools are: {', '.join(self._known or ()) or 'none'}")
        not_json(call.arguments)

    async def user(self) -> str | None:
        if not self._has_user:
            return None
        body = encode({"items": [item.json for item in self.trajectory.items]})
        answer = await self._posted("environment", "/rollmill/user", body)
        return _read(answer, _Words, "environment").words

    async def score(self, compute: Compute) -> Reward:
        trajectory = self.trajectory
        asked = (trajectory.asked or self.task).fields
        counts = wire.Counts(trajectory.turns, trajectory.tool_calls)
        body = wire.row_body(asked, response=trajectory.response().wire())
        answer = await self._posted("verifier", "/verify", body, {wire.COUNTS: counts.header()})
        # The session has served; there is nothing left to close.
        self._cookies.clear()
        try:
            return wire.read_verdict(answer.body, asked, ours=wire.OURS[0].encode() in answer.headers)
        except wire.MALFORMED as error:
            detail = f"{self._client.url}/verify answered no verdict: {error}"
            raise RolloutError(Failure("verifier", "malformed", detail)) from None

    async def close(self) -> None:
        if self._cookies:
            # A service that has no such path lets its sessions be.
            with suppress(WireError):
                await self._client.post("/close", b"{}", self._headers())

    async def _posted(
        self,
        where: Where,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        known: tuple[int, ...] = (),
    ) -> Answer:
        asking = self._client.post(path, body, self._headers() | dict(headers or {}))
        answer: Answer = await self._asked(asking, where)
        self._keep_cookies(answer)
        if answer.status != 200 and answer.status not in known:
            raise refusal(answer, f"{self._client.url}{path}", where)
        self.ended = self.ended or wire.ENDED.encode() in answer.headers
        return answer

    async def _asked(self, asking: Any, where: Where) -> Any:
        try:
            return await asking
        except WireError as error:
            if not error.reached:
                # It was waited for; without it nothing can be played.
                raise OutageError(f"the environment at {self._client.url} cannot be reached: {error}") from None
            raise RolloutError(unanswered(error, self._client.url, where)) from None

    def _headers(self) -> dict[str, str]:
        return (
            {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())} if self._cookies else {}
        )

    def _keep_cookies(self, answer: Answer) -> None:
        # By hand: the usual jars drop what a bare address has set.
        for line in answer.header("set-cookie").splitlines():
            name, equals, value = line.partition(";")[0].strip().partition("=")
            if equals:
                self._cookies[name] = value


class _Words(Struct):
    words: str | None = None


class _Tool(Struct):
    name: str | None = None


def _names(tools: Raw | bytes) -> tuple[str, ...]:
    return tuple(tool.name for tool in decode(tools, type=list[_Tool]) if tool.name)


def _read(answer: Answer, kind: type[_Words], where: Where) -> _Words:
    try:
        return decode(answer.body, type=kind)
    except UNREADABLE as error:
        raise RolloutError(Failure(where, "malformed", f"the service answered what cannot be read: {error}")) from None


def unanswered(error: WireError, url: str, where: Where) -> Failure:
    """What no answer comes to."""
    if isinstance(error, LateError):
        return Failure(where, "timeout", f"{url}: {error}", retryable=True)
    return Failure("infrastructure", "unreachable", f"{url}: {error}", retryable=True)


def refusal(answer: Answer, url: str, where: Where) -> RollmillError:
    """What an answer that is none comes to: the failure that it tells of, or one of our own."""
    detail = f"{url} answered {answer.status}: {wire.said(answer.body)}"
    if stopping := wire.stopping(answer.body, detail):
        return stopping
    if wire.code(answer.body) == SESSION_ENDED:
        # The process that held the world was replaced, or it rested for too long: in a new one it can be played.
        return RolloutError(Failure("infrastructure", "session_lost", detail, retryable=True))
    failure = wire.read_failure(answer.body)
    if failure is None:
        again = answer.status in (408, 429, 502, 503, 504)
        failure = Failure(where, "error", detail, retryable=again, retry_after_s=retry_after(answer))
    return RolloutError(failure)
