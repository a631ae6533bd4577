"""The instances of one process as services: live parts, and an application for each."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from rollmill.collection.calls import Lasting
from rollmill.config import Instance
from rollmill.config.secrets import mask_text
from rollmill.deadline import Watch
from rollmill.environment import Environment
from rollmill.errors import ConfigError
from rollmill.instances import environment_kind, environment_of, known_kind, own_fields
from rollmill.launch import Parts, Setup
from rollmill.local import Seat
from rollmill.model import Endpoint, Secret
from rollmill.profiling.profile import Profile
from rollmill.quality.aggregate import aggregate
from rollmill.rollout import Deferred, play
from rollmill.serve.agent import AgentService, Player
from rollmill.serve.app import App
from rollmill.serve.client import Client
from rollmill.serve.environment import EnvironmentService
from rollmill.serve.guard import Guard
from rollmill.serve.model import ModelService
from rollmill.serve.relay import Relay
from rollmill.types import Rollout, Slot, Task
from rollmill.verification.pool import RewardPool


class Hosting:
    """Makes services of a setup's instances."""

    def __init__(
        self,
        setup: Setup,
        stack: AsyncExitStack,
        *,
        secrets: list[str],
        idle_s: float,
        worker: int,
        profile: Profile | None = None,
    ) -> None:
        self._setup, self._stack = setup, stack
        self._spans = profile.spans if profile else None
        self._parts = Parts(setup, stack, Lasting, spans=self._spans)
        self._hide: Callable[[str], str] = functools.partial(mask_text, secrets=secrets)
        self._idle_s, self._worker = idle_s, worker
        self._compute = RewardPool(profile=profile)
        self._watch = Watch()

    async def open(self) -> None:
        await self._stack.enter_async_context(self._compute)

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The models that live elsewhere."""
        return {name: model for name, model in self._parts.models.items() if isinstance(model, Endpoint)}

    async def service(self, name: str, guard: Guard, siblings: Sequence[str] = ()) -> App:
        """`siblings` are the URLs of the processes that serve the same, this one among them."""
        instance = self._setup.instances[name]
        match instance.kind:
            case "responses_api_models":
                model = await self._parts.model(name)
                return ModelService(name, model, guard=guard, hide=self._hide).app
            case "resources_servers":
                return await self._environment(instance, guard, siblings)
            case "responses_api_agents":
                player = self._player(instance, await self._parts.seat(name))
                return AgentService(name, player, aggregate, guard=guard, hide=self._hide).app
        raise ConfigError(f"{instance.at}: nobody serves one of {instance.kind}")

    async def _environment(self, instance: Instance, guard: Guard, siblings: Sequence[str]) -> App:
        service = EnvironmentService(
            instance.name,
            environment_kind(instance),
            await self._parts.world(instance),
            self._compute,
            aggregate,
            config=own_fields(instance),
            guard=guard,
            deadlines=self._setup.deadlines,
            idle_s=self._idle_s,
            place=f"{self._worker}." if siblings else "",
            relay=await self._relay(siblings),
            hide=self._hide,
            spans=self._spans,
        )
        return service.app

    async def _relay(self, siblings: Sequence[str]) -> Relay:
        token = Secret(self._setup.access_token) if self._setup.access_token else None
        others = {f"{place}.": Client(url, token=token) for place, url in enumerate(siblings) if place != self._worker}
        for client in others.values():
            await self._stack.enter_async_context(client)
        return Relay(others)

    def _player(self, agent: Instance, seat: Seat) -> Player:
        environment = environment_of(self._setup.instances, agent)
        kind = known_kind(environment, self._setup.addresses)
        fields = own_fields(environment) if environment else {}
        check = functools.partial(_check, kind, fields)
        run = functools.partial(self._play, agent.name, seat)
        return Player(kind.task_type if kind else Task, check, run, functools.partial(run, judge=Deferred()))

    async def _play(self, agent: str, seat: Seat, task: Task, **options: Any) -> Rollout:
        return await play(
            task,
            seat.world,
            seat.agent,
            seat.model,
            slot=Slot(agent, task.identity),
            compute=self._compute,
            deadlines=self._setup.deadlines,
            watch=self._watch,
            spans=self._spans,
            **options,
        )


def _check(kind: type[Environment[Any]] | None, fields: Mapping[str, Any], task: Any) -> None:
    if kind is not None:
        kind.check_task(task, fields)


async def unanswering(endpoints: Mapping[str, Endpoint]) -> dict[str, str]:
    """What is wrong with each model that does not answer."""

    async def look(model: Endpoint) -> str:
        try:
            await model.check()
        except ConfigError as error:
            return str(error)
        return ""

    found = await asyncio.gather(*map(look, endpoints.values()))
    return {name: fault for name, fault in zip(endpoints, found, strict=True) if fault}
