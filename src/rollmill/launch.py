"""From a configuration to live parts: the one place that knows what runs where."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from msgspec import Struct

from rollmill.collection.adaptive import Adaptive
from rollmill.collection.calls import Calls, Persistent
from rollmill.collection.limits import MOST_RUNNING, AdaptiveAdmission, Bounded, ByModel, LocalAdmission, Places
from rollmill.collection.options import Limits, ModelLimits
from rollmill.collection.rates import Rates
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.throttle import Fixed, Throttle
from rollmill.config import Instance
from rollmill.config.secrets import mask_text, secret_values
from rollmill.environment import World, opened
from rollmill.instances import (
    environment_instance,
    environment_kind,
    environment_of,
    make_agent,
    make_model,
    model_name,
    other_models,
    own_fields,
    reference,
)
from rollmill.local import LocalWorker, Seat
from rollmill.model import Endpoint, Model, Secret
from rollmill.net.connection import CallDeadlines
from rollmill.profiling.profile import Profile
from rollmill.rollout import Deadlines, Deferred, at_once
from rollmill.serve.client import Client
from rollmill.serve.remote_agent import Elsewhere, NamedModel, RemoteAgent
from rollmill.serve.remote_environment import RemoteWorld
from rollmill.serve.remote_model import RemoteModel
from rollmill.types import Spans
from rollmill.verification.pool import RewardPool

_CALL_ATTEMPTS = 6
_PLACES_ELSEWHERE = 256
"""How many rollouts services are asked for at once, where nobody says it; how many calls a model serves they know."""


class Setup(Struct, frozen=True):
    """Everything that a worker needs to know, as data: it can be sent to another process."""

    instances: dict[str, Instance]
    agents: tuple[str, ...]
    """Those that are known to play; others are made when their first row comes."""
    run: str = ""
    places: int | None = None
    most: int = MOST_RUNNING
    """How many rollouts run at once at the most, where `places` says nothing."""
    limits: Limits = Limits()
    attempts: int = 3
    outage_s: float = 50.0
    deadlines: Deadlines = Deadlines()
    placeholder: float | None = None
    """The reward where verification is deferred."""
    addresses: dict[str, str] = {}
    """The URLs of instances that live behind services; all others are made where this is read."""
    access_token: str = ""
    """What those services want to see."""

    def __repr__(self) -> str:
        return f"<Setup of {', '.join(self.instances)}>"  # fields may hold secrets


@asynccontextmanager
async def assemble(setup: Setup, profile: Profile | None = None) -> AsyncIterator[LocalWorker]:
    """A worker in this process, with its live parts. Raises `ConfigError` if an endpoint does not answer.

    A `profile` hears of all that the worker does; whoever gives it has started it.
    """
    spans = profile.spans if profile else None
    async with AsyncExitStack() as stack:
        parts = Parts(setup, stack, spans=spans)
        for name in sorted(setup.agents):
            await parts.seat(name)
        await asyncio.gather(*(model.check() for model in parts.models.values() if isinstance(model, Endpoint)))
        compute = await stack.enter_async_context(RewardPool(profile=profile))
        yield LocalWorker(
            parts.seat,
            compute,
            run=setup.run,
            admission=parts.admission(),
            calls=parts.calls,
            deadlines=setup.deadlines,
            judge=at_once if setup.placeholder is None else Deferred(setup.placeholder),
            spans=spans,
            hide=functools.partial(mask_text, secrets=secrets_of(setup)),
        )


def secrets_of(setup: Setup) -> list[str]:
    told = {name: instance.fields for name, instance in setup.instances.items()}
    return [*secret_values({**told, "access_token": setup.access_token})]


async def check_endpoint(
    instances: Mapping[str, Instance], agent: str | None, addresses: Mapping[str, str] = {}
) -> None:
    """Raise `ConfigError` if the model of that agent, or of the only one, lives elsewhere and does not answer."""
    agents = [name for name, one in instances.items() if one.kind == "responses_api_agents"]
    name = agent or (agents[0] if len(agents) == 1 else None)
    if name not in agents or name is None or name in addresses:
        return
    policy = reference(instances[name], "model_server", "responses_api_models")
    if policy not in instances or policy in addresses:
        return
    if isinstance(model := make_model(instances[policy]), Endpoint):
        await model.check()


Persist = Callable[[Model, Callable[[], Calls]], Model]
"""Makes a model's calls be made again where they fail; the second argument makes what they share."""


def for_a_run(model: Model, make: Callable[[], Calls]) -> Model:
    return Persistent(model, make())


class Parts:
    """Makes each instance once, when it is first needed, and enters what has to be entered."""

    def __init__(
        self, setup: Setup, stack: AsyncExitStack, persist: Persist = for_a_run, *, spans: Spans | None = None
    ) -> None:
        self._setup, self._spans = setup, spans
        self._instances, self._addresses = setup.instances, setup.addresses
        self._stack, self._persist = stack, persist
        self.models: dict[str, Model] = {}
        self.calls: list[Calls] = []
        self._calls: dict[str, Calls] = {}
        self._persistent: dict[str, Model] = {}
        self._worlds: dict[str, World] = {}
        self._seats: dict[str, Seat] = {}
        self._building = asyncio.Lock()

    async def seat(self, name: str) -> Seat:
        found = self._seats.get(name)
        if found is None:
            async with self._building:
                found = self._seats[name] = self._seats.get(name) or await self._seat(name)
        return found

    def admission(self) -> LocalAdmission:
        """Of all agents that may play: as many at once as was told, or as their models serve."""
        setup = self._setup
        agents = {name: one for name, one in self._instances.items() if one.kind == "responses_api_agents"}
        places = setup.places or min((n for n in map(_places, self.models.values()) if n), default=None)
        if places is None and agents.keys() & self._addresses.keys():
            places = _PLACES_ELSEWHERE
        admission: LocalAdmission
        if places is not None:
            admission = Places(places)
        else:
            admission = ByModel(
                {name: reference(agent, "model_server", "responses_api_models") for name, agent in agents.items()},
                lambda model: AdaptiveAdmission(self._calls_of(model).throttle, most=setup.most),
            )
        environments = {name: environment_of(self._instances, agent) for name, agent in agents.items()}
        most = setup.limits.environments
        bounds = {agent: most[one.name] for agent, one in environments.items() if one is not None and one.name in most}
        return Bounded(admission, bounds) if bounds else admission

    async def _seat(self, name: str) -> Seat:
        instance = self._instances[name]
        if name in self._addresses:
            agent = await self._stack.enter_async_context(RemoteAgent(name, self._client(name)))
            return Seat(Elsewhere, agent, NamedModel(model_name(self._instances, instance)))
        model = await self.model(reference(instance, "model_server", "responses_api_models"))
        world = await self.world(environment_instance(self._instances, instance))
        return Seat(world, make_agent(instance), model)

    async def model(self, name: str) -> Model:
        if name not in self._persistent:
            instance = self._instances[name]
            if name in self._addresses:
                # What fails there is tried again there.
                called = model_name(self._instances, instance)
                remote = RemoteModel(called, self._client(name), self._spans_of(name), label=name)
                self._persistent[name] = await self._stack.enter_async_context(remote)
                return remote
            model = make_model(instance)
            if isinstance(model, AbstractAsyncContextManager):
                await self._stack.enter_async_context(model)
            self.models[name] = model
            self._persistent[name] = self._persist(model, lambda: self._calls_of(name))
        return self._persistent[name]

    def _client(self, name: str) -> Client:
        setup = self._setup
        whole = setup.deadlines.setup_s + setup.deadlines.play_s + setup.deadlines.verify_s
        token = Secret(setup.access_token) if setup.access_token else None
        # The first byte of an answer comes when all of it is known.
        deadlines = CallDeadlines(first_byte_s=whole, total_s=whole + CallDeadlines().idle_s)
        return Client(self._addresses[name], token=token, deadlines=deadlines, wait_s=setup.outage_s)

    def _calls_of(self, name: str) -> Calls:
        """What all calls of one model share; made before the model is."""
        known = self._calls.get(name)
        if known is None or known.stopped:
            setup = self._setup
            limits = setup.limits.models.get(name, ModelLimits())
            throttle: Throttle | None = None
            if limits.concurrency is not None:
                throttle = Fixed(limits.concurrency)
            elif setup.places is None:
                throttle = Adaptive()
            self._calls[name] = Calls(
                name,
                RetryPolicy(attempts=1 if setup.attempts == 1 else max(setup.attempts, _CALL_ATTEMPTS)),
                throttle=throttle,
                rates=_rates(limits),
                outage_s=setup.outage_s,
                spans=self._spans_of(name),
            )
            self.calls.append(self._calls[name])
        return self._calls[name]

    def _spans_of(self, model: str) -> Spans | None:
        """The calls of a model that only judges are part of the verification, or of the tool, that makes them."""
        if self._spans is None:
            return None
        agents = (one for one in self._instances.values() if one.kind == "responses_api_agents")
        played_with = {one.fields.get("model_server", {}).get("name") for one in agents}
        return self._spans if model in played_with else None

    async def world(self, instance: Instance) -> World:
        if instance.name in self._addresses and instance.name not in self._worlds:
            remote = RemoteWorld(self._client(instance.name))
            self._worlds[instance.name] = await self._stack.enter_async_context(remote.opened())
        if instance.name not in self._worlds:
            kind = environment_kind(instance)
            config = own_fields(instance)
            models: dict[str, Model] = {}
            for field, model in other_models(instance).items():
                # By the field's name, which the environment's author chose, and by the instance's own.
                models[field] = models[model] = await self.model(model)
            world = await self._stack.enter_async_context(opened(kind, config, models))
            self._worlds[instance.name] = world
        return self._worlds[instance.name]


def _places(model: Model) -> int | None:
    """How many rollouts a model says it can well serve at once."""
    return getattr(model, "places", None)


def _rates(limits: ModelLimits) -> Rates | None:
    if limits.requests_per_minute is None and limits.tokens_per_minute is None:
        return None
    return Rates(limits.requests_per_minute, limits.tokens_per_minute)
