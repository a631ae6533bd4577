"""An agent behind HTTP, ours or anybody's: it plays whole rollouts, with a world and a model of its own."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Raw, Struct

from rollmill.environment import Compute, Environment
from rollmill.errors import ContractError, OutageError, RolloutError
from rollmill.model import Conversation, Model
from rollmill.net.connection import Answer, WireError
from rollmill.serve import wire
from rollmill.serve.client import Client
from rollmill.serve.remote_environment import refusal, unanswered
from rollmill.store.schema import read_row
from rollmill.types import Failure, Reply, Response, Reward, Rollout, Slot, Stop, Task, Trajectory, decode


class Elsewhere(Environment[Task]):
    """The world of a rollout that is played behind a service: nothing of it is here but the verdict."""

    verdict: Reward | None = None

    async def score(self, compute: Compute) -> Reward:
        if self.verdict is None:
            raise ContractError("nothing was played: Elsewhere is the world of a RemoteAgent")
        return self.verdict


class NamedModel:
    """The model that plays behind a service, known by its name alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def reply(self, conversation: Conversation) -> Reply:
        raise ContractError(f"{self.name} answers behind a service, and cannot be asked from here")


class RemoteAgent:
    """Posts tasks to `/run`, and takes over what comes back."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self._client = client

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__(*error)

    async def play(self, task: Task, environment: Environment[Any], model: Model, trajectory: Trajectory) -> Stop:
        url = f"{self._client.url}/run"
        try:
            answer = await self._client.post("/run", wire.row_body(task.fields))
        except WireError as error:
            if not error.reached:
                # It was waited for; without it nothing can be played.
                raise OutageError(f"the agent {self.name} at {self._client.url} cannot be reached: {error}") from None
            raise RolloutError(unanswered(error, url, "agent")) from None
        if answer.status != 200:
            raise self._failed(answer, trajectory)
        try:
            rollout = _read(answer, task)
        except wire.MALFORMED as error:
            detail = f"{url} answered what is no rollout: {error}"
            raise RolloutError(Failure("agent", "malformed", detail)) from None
        trajectory.restore(rollout)
        trajectory.asked = rollout.task
        trajectory.seconds |= {stage: spent for stage, spent in rollout.seconds.items() if stage != "play"}
        if isinstance(environment, Elsewhere):
            environment.verdict = rollout.reward
        return rollout.stop

    def _failed(self, answer: Answer, trajectory: Trajectory) -> Exception:
        with suppress(*wire.MALFORMED):
            told = decode(wire.checked(answer.body), type=_Told)
            trajectory.restore(_rollout(told.response, told.rollmill, Task.of("")))
            trajectory.seconds |= {stage: spent for stage, spent in told.seconds.items() if stage != "play"}
        return refusal(answer, f"{self._client.url}/run", "agent")


class _Told(Struct):
    response: Raw
    rollmill: wire.Counts | None = None
    seconds: dict[str, float] = {}


class _Row(Struct):
    response: Raw


def _read(answer: Answer, task: Task) -> Rollout:
    """A rollout from what any system's `/run` answers."""
    body = wire.checked(answer.body)
    if wire.OURS[0].encode() in answer.headers:
        return read_row(body, Task)
    rollout = _rollout(decode(body, type=_Row).response, None, task)
    return msgspec.structs.replace(rollout, reward=wire.read_verdict(body, task.fields))


def _rollout(response: Raw, counts: wire.Counts | None, task: Task) -> Rollout:
    read = wire.read_response(response)
    counts = counts or wire.counted(read.output)
    slot = Slot("", "")
    return Rollout(slot, task, read, _stop(read), "", turns=counts.turns, tool_calls=counts.tool_calls)


class _Incomplete(Struct):
    reason: str | None = None


def _stop(response: Response) -> Stop:
    cut = decode(response.fields.get("incomplete_details", Raw(b"null")), type=_Incomplete | None)
    if cut is None or cut.reason is None:
        return Stop.DONE
    return Stop.CONTENT_FILTER if cut.reason == "content_filter" else Stop.LENGTH
