"""An environment as a service: a session for each task, its tools, its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from rollmill.deadline import Watch
from rollmill.environment import Compute, Environment, World
from rollmill.errors import ConfigError, ContractError, RolloutError, boundary
from rollmill.rollout import Deadlines, Stage, close_world, verify_again
from rollmill.serve import schemas, wire
from rollmill.serve.app import App, Route
from rollmill.serve.guard import Guard
from rollmill.serve.http import (
    JSON,
    TEXT,
    Answer,
    Handler,
    Problem,
    Request,
    cookie_name,
    invalid,
    json,
    read,
    set_cookie,
)
from rollmill.serve.openapi import ANY_OBJECT, Operation
from rollmill.serve.relay import Relay
from rollmill.serve.sessions import SESSION_ENDED, Session, Sessions
from rollmill.store.schema import UNREADABLE, is_json
from rollmill.tools import Tool
from rollmill.types import (
    Failure,
    FunctionCall,
    FunctionCallOutput,
    Response,
    Rollout,
    Slot,
    Spans,
    Stop,
    Task,
    Trajectory,
    encode,
    read_item,
    read_task,
)

RESERVED = ("seed_session", "verify", "close", "aggregate_metrics")
"""The paths that no tool can have."""

Aggregate = Callable[[Iterable[dict[str, Any]]], dict[str, Any]]

_VERDICT = {"type": "object", "required": ["reward"], "properties": {"reward": {"type": "number"}}}
# The model is told in a text, or a route that there is no session.
_REFUSED = {"type": "object", "required": ["error"], "properties": {"error": {"type": ["string", "object"]}}}


class EnvironmentService:
    """Serves one environment. Enter its `life()` while it does."""

    def __init__(
        self,
        name: str,
        kind: type[Environment[Any]],
        world: World,
        compute: Compute,
        aggregate: Aggregate,
        *,
        config: Mapping[str, Any] | None = None,
        guard: Guard = Guard(),
        deadlines: Deadlines = Deadlines(),
        idle_s: float = 3600.0,
        place: str = "",
        relay: Relay = Relay({}),
        hide: Callable[[str], str] = str,
        spans: Spans | None = None,
    ) -> None:
        """`place` begins the ids of this process's sessions, `relay` knows the other processes, `spans` profiles."""
        for tool in kind.tools:
            if tool in RESERVED:
                raise ContractError(f"{kind.__name__}: as a service it cannot have a tool called {tool}; rename it")
        self.name = name
        self._kind, self._world, self._compute, self._aggregate = kind, world, compute, aggregate
        self._config = config or {}
        self._deadlines = deadlines
        self._watch, self._spans = Watch(), spans
        self._cookie = cookie_name(kind, name)
        self._relay = relay
        self.sessions = Sessions(self._close, idle_s=idle_s, place=place)
        self.app = App(name, self._routes(), guard=guard, life=self.life, hide=hide)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self.sessions.watch())
        try:
            yield
        finally:
            watching.cancel()
            await self.sessions.close()

    def _routes(self) -> list[Route]:
        session = (409, 410, 503, 504)
        row, whole = schemas.row(self._kind.task_type), schemas.judged(self._kind.task_type)
        routes = [
            Route(
                *("POST", "/seed_session", self._held(self._seed)),
                Operation("Begin a task", row, problems=(503, 504)),
                long=True,
            ),
            Route(
                *("POST", "/verify", self._held(self._verify)),
                Operation("Judge what happened", whole, _VERDICT, problems=session),
                long=True,
            ),
            Route("POST", "/close", self._held(self._end), Operation("End the session")),
            Route("POST", "/aggregate_metrics", self._sum_up, Operation("Metrics of many verdicts", schemas.ROWS)),
            Route("GET", "/reverify_mode", self._mode, Operation("Whether stored rollouts can be verified again")),
            Route("GET", "/environment", self._tell, Operation("What this environment is")),
        ]
        if self._has_user:
            items = {"type": "object", "properties": {"items": schemas.ITEMS}}
            operation = Operation("The user's next words", items, problems=session)
            routes.append(Route("POST", "/rollmill/user", self._held(self._user), operation))
        routes += [self._tool(tool) for tool in self._kind.tools.values()]
        nowhere = Operation("A tool that there is not", ANY_OBJECT, problems=(404,))
        return [*routes, Route("POST", "/{tool}", self._unknown, nowhere)]

    def _tool(self, tool: Tool) -> Route:
        async def call(request: Request) -> Answer:
            return await self._call(tool.name, request)

        operation = Operation(
            tool.description.partition("\n")[0] or tool.name,
            tool.schema["parameters"],
            {},
            problems=(409, 410, 422, 504),
            content_types=(JSON, TEXT.partition(";")[0]),
            refusal=_REFUSED,
        )
        return Route("POST", f"/{tool.name}", self._held(call), operation, long=True)

    def _held(self, handler: Handler) -> Handler:
        """What belongs to a session is answered by the process that holds it."""
        return self._relay.around(handler, self._cookie)

    @property
    def _has_user(self) -> bool:
        return self._kind.user is not Environment.user

    # The life of a session.

    async def _seed(self, request: Request) -> Answer:
        task = self._task(request.body)
        with self.sessions.room():
            world = await self._set_up(task)
        id = self.sessions.begin(world, self._id(request))
        return Answer(headers=(set_cookie(self._cookie, id),))

    async def _call(self, name: str, request: Request) -> Answer:
        with self._session(request) as session:
            world, trajectory = session.world, session.world.trajectory
            call_id = request.headers.get(wire.CALL) or f"call_{len(trajectory.items)}"
            try:
                call = FunctionCall(name=name, arguments=request.body.decode() or "{}", call_id=call_id)
            except UnicodeDecodeError as error:
                raise Problem(400, "not_json", f"the body is no JSON: {error}") from None
            output = await self._played(world, call)
            trajectory.items += (call, output)
            cookie = set_cookie(self._cookie, self._id(request))
            headers = (cookie, *(((wire.ENDED, "true"),) if world.ended else ()))
        body = output.text.encode("utf-8", "replace")
        refused = output.status == "incomplete"
        return Answer(body, 422 if refused else 200, JSON if is_json(body) else TEXT, headers)

    async def _played(self, world: Environment[Any], call: FunctionCall) -> FunctionCallOutput:
        longest_s = self._deadlines.play_s
        try:
            # No stage of its own: the call is timed by the world.
            with self._watch.within(longest_s):
                return await world.call(call)
        except TimeoutError:
            detail = f"{call.name} took longer than {longest_s:g} s"
            raise wire.failed(Failure("tool", "timeout", detail, retryable=True)) from None
        except RolloutError as error:
            raise wire.failed(error.failure) from error

    async def _user(self, request: Request) -> Answer:
        body = request.read(dict[str, Raw])
        items = [_item(raw) for raw in read(body.get("items", b"[]"), list[Raw])]
        with self._session(request) as session:
            session.world.trajectory.items = items
            try:
                with Stage("environment", "user", self._deadlines.play_s, session.world.trajectory, self._watch):
                    words = await session.world.user()
            except RolloutError as error:
                raise wire.failed(error.failure) from error
            headers = ((wire.ENDED, "true"),) if session.world.ended else ()
        return Answer(encode({"words": words}), headers=headers)

    async def _verify(self, request: Request) -> Answer:
        row = request.read(dict[str, Raw])
        if "response" not in row:
            raise invalid("the row has no `response`: what the model has said and done")
        response = _response(row["response"])
        counts = wire.read_counts(request.headers.get(wire.COUNTS, "")) or wire.counted(response.output)
        id = self._id(request)
        try:
            if id in self.sessions:
                with self.sessions.entered(id) as session:
                    reward = await self._judge(session, response, counts)
                self.sessions.end(id)
            else:
                task = self._task(encode({name: value for name, value in row.items() if name != "response"}))
                reward = await self._judge_alone(task, response, counts, known=bool(id))
        except RolloutError as error:
            raise wire.failed(error.failure) from error
        return Answer(encode(wire.verdict(row, reward)), headers=(wire.OURS,))

    async def _judge(self, session: Session, response: Response, counts: wire.Counts) -> Any:
        world = session.world
        trajectory = world.trajectory
        trajectory.items = list(response.output)
        trajectory.usage, trajectory.fields = response.usage, response.fields
        trajectory.turns, trajectory.tool_calls = counts.turns, counts.tool_calls
        with Stage("verifier", "verify", self._deadlines.verify_s, trajectory, self._watch):
            return await world.score(self._compute)

    async def _judge_alone(self, task: Task, response: Response, counts: wire.Counts, *, known: bool) -> Any:
        """Without a session: as a stored rollout is verified."""
        if self._kind.verification == "unsupported":
            status, code = (410, SESSION_ENDED) if known else (409, "no_session")
            raise Problem(
                *(status, code),
                f"{self._kind.__name__} judges by what its session holds (it declares verification = unsupported): "
                "post the task to /seed_session first, and send the cookie that comes back",
            )
        slot = Slot(self.name, task.identity)
        rollout = Rollout(slot, task, response, Stop.DONE, "", turns=counts.turns, tool_calls=counts.tool_calls)
        return await verify_again(rollout, self._world, compute=self._compute, deadlines=self._deadlines)

    async def _end(self, request: Request) -> Answer:
        self.sessions.end(self._id(request))
        return Answer()

    # What needs no session.

    async def _sum_up(self, request: Request) -> Answer:
        return json(self._aggregate(request.read(Verdicts).verify_responses))

    async def _mode(self, _: Request) -> Answer:
        return json("stateless" if self._kind.verification == "stateless" else "unsupported")

    async def _tell(self, _: Request) -> Answer:
        kind = self._kind
        described = wire.Described(
            kind.__name__, kind.domain, kind.verification, kind.version, kind.tools_json, self._has_user
        )
        return json(described)

    async def _unknown(self, request: Request) -> Answer:
        tools = ", ".join(self._kind.tools) or "none"
        raise Problem(404, "unknown_tool", f"Unknown tool: {request.place['tool']}. The tools are: {tools}")

    # Their parts.

    def _task(self, row: bytes) -> Task:
        task = read_row(row, self._kind.task_type)
        try:
            with boundary("environment"):
                self._kind.check_task(task, self._config)
        except ConfigError as error:
            raise invalid(str(error)) from None
        except RolloutError as error:
            raise wire.failed(error.failure) from error
        return task

    async def _set_up(self, task: Task) -> Environment[Any]:
        try:
            with boundary("environment"):
                world = self._world(task)
            world.trajectory = Trajectory(task.prompt)
            world.trajectory.spans = self._spans
            try:
                with Stage("environment", "setup", self._deadlines.setup_s, world.trajectory, self._watch):
                    await world.setup()
            except BaseException:
                await self._close(world)
                raise
        except RolloutError as error:
            raise wire.failed(error.failure) from error
        return world

    async def _close(self, world: Environment[Any]) -> None:
        await close_world(world, self._deadlines.close_s, self._watch)

    def _id(self, request: Request) -> str:
        return request.cookie(self._cookie)

    def _session(self, request: Request) -> Any:
        return self.sessions.entered(self._id(request))


class Verdicts(msgspec.Struct):
    """What `/aggregate_metrics` is asked for."""

    verify_responses: list[dict[str, Any]]


Kind = type[Task]


def read_row(row: bytes, kind: Kind) -> Task:
    """A task from what a client sent. Raises `Problem`."""
    try:
        task = read_task(row, kind)
        # Read through to its last value, so that nothing is found wrong with it later.
        _ = task.identity, task.params
        return task
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except UNREADABLE as error:
        raise Problem(400, "not_json", f"the body is no JSON: {error}") from None


def _response(raw: Raw) -> Response:
    try:
        return wire.read_response(raw)
    except UNREADABLE as error:
        raise invalid(f"`response`: {error}") from None


def _item(raw: Raw) -> Any:
    try:
        return read_item(raw)
    except UNREADABLE as error:
        raise invalid(f"`items`: {error}") from None
