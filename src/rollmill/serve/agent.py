"""An agent as a service: a row in, a verified rollout out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw, Struct

from rollmill.errors import ConfigError
from rollmill.serve import events, schemas, wire
from rollmill.serve.app import App, Route
from rollmill.serve.environment import Aggregate, Verdicts, read_row
from rollmill.serve.guard import Guard
from rollmill.serve.http import EVENTS, JSON, Answer, Problem, Request, invalid, json
from rollmill.serve.model import response_of
from rollmill.serve.openapi import Operation
from rollmill.store.schema import write_row
from rollmill.types import Failure, Reply, Rollout, Stop, Task, encode

MOST_ROLLOUTS = 4096

_OF_ROLLOUT = (400, 403, 429, 502, 503, 504)

Play = Callable[[Task], Awaitable[Rollout]]


class _Asked(Struct):
    """A request of the Responses API, as far as it is no part of the task that becomes of it."""

    input: Raw
    stream: bool | None = None


class Player:
    """What plays behind an agent's service."""

    def __init__(self, task_type: type[Task], check: Callable[[Any], None], play: Play, respond: Play) -> None:
        """`respond` plays without a verdict."""
        self.task_type, self.check, self.play, self.respond = task_type, check, play, respond


class AgentService:
    """Serves one agent, with the environment and the model that it plays with."""

    def __init__(
        self,
        name: str,
        player: Player,
        aggregate: Aggregate,
        *,
        guard: Guard = Guard(),
        most: int = MOST_ROLLOUTS,
        hide: Callable[[str], str] = str,
    ) -> None:
        self.name = name
        self._player, self._aggregate, self._most = player, aggregate, most
        self._hide = hide
        self._running = 0
        self.app = App(name, self._routes(), guard=guard, hide=hide)

    def _routes(self) -> list[Route]:
        verified = {"type": "object", "required": ["reward", "response"]}
        asked = schemas.of(_Asked, input=schemas.INPUT)
        run = Operation("Play a task and judge it", schemas.row(self._player.task_type), verified, problems=_OF_ROLLOUT)
        both = (JSON, EVENTS.partition(";")[0])
        answer = Operation("Play a conversation", asked, problems=_OF_ROLLOUT, content_types=both)
        return [
            Route("POST", "/run", self._run, run, long=True),
            Route("POST", "/v1/responses", self._respond, answer, long=True),
            Route("POST", "/aggregate_metrics", self._sum_up, Operation("Metrics of many rollouts", schemas.ROWS)),
        ]

    async def _run(self, request: Request) -> Answer:
        rollout = await self._play(self._player.play, request.body)
        if rollout.failure is not None:
            raise _told(rollout, rollout.failure)
        return Answer(write_row(rollout, ""), headers=(wire.OURS,))

    async def _respond(self, request: Request) -> Answer:
        stream, fields = request.read(_Asked).stream, request.read(dict[str, Raw])
        params = {name: raw for name, raw in fields.items() if name not in ("stream", "stream_options")}
        try:
            rollout = await self._play(self._player.respond, encode({"responses_create_params": params}))
        except Problem as problem:
            if problem.status == 422:
                raise invalid(f"{problem.message}; post rows of this agent's tasks to /run") from None
            raise
        if rollout.failure is not None:
            raise _told(rollout, rollout.failure)
        response = rollout.response
        stop = rollout.stop if rollout.stop in (Stop.LENGTH, Stop.CONTEXT, Stop.CONTENT_FILTER) else None
        body = response_of(Reply(response.output, response.usage, stop, response.fields), rollout.model, params)
        if stream:
            return Answer(content_type=EVENTS, stream=events.named(events.of_response(body)))
        return Answer(encode(body))

    async def _sum_up(self, request: Request) -> Answer:
        return json(self._aggregate(request.read(Verdicts).verify_responses))

    async def _play(self, play: Play, row: bytes) -> Rollout:
        task = read_row(row, self._player.task_type)
        try:
            self._player.check(task)
        except ConfigError as error:
            raise invalid(str(error)) from None
        if self._running >= self._most:
            again = (("Retry-After", "1"),)
            raise Problem(503, "full", f"{self._most:,} rollouts run here, and no more may", headers=again)
        self._running += 1
        try:
            return await play(task)
        finally:
            self._running -= 1


def _told(rollout: Rollout, failure: Failure) -> Problem:
    """A rollout that failed, with what had happened until then."""
    counts = wire.Counts(rollout.turns, rollout.tool_calls)
    return wire.failed(failure, response=rollout.response.wire(), rollmill=counts, seconds=rollout.seconds)
