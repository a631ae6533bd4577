"""From a configuration to live parts: the one place that knows what runs where."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct

from rollmill import plugins
from rollmill.agent import Agent
from rollmill.collection.adaptive import Adaptive
from rollmill.collection.calls import Calls, Persistent
from rollmill.collection.limits import MOST_RUNNING, AdaptiveAdmission, Bounded, ByModel, LocalAdmission, Places
from rollmill.collection.options import Limits, ModelLimits
from rollmill.collection.rates import Rates
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.throttle import Fixed, Throttle
from rollmill.config import Config, Instance, convert, masked
from rollmill.environment import Environment, World, opened
from rollmill.errors import CallerError, ConfigError, RollmillError, describe, suggestion
from rollmill.local import LocalWorker, Seat
from rollmill.model import Endpoint, Model
from rollmill.rollout import Deadlines, Deferred, at_once
from rollmill.store.manifest import Identity
from rollmill.verification.pool import RewardPool

_CALL_ATTEMPTS = 6
_COMMON = {"entrypoint", "host", "port", "num_workers", "domain", "datasets", "description", "verified", "verified_url"}


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

    def __repr__(self) -> str:
        return f"<Setup of {', '.join(self.instances)}>"  # fields may hold secrets


@asynccontextmanager
async def assemble(setup: Setup) -> AsyncIterator[LocalWorker]:
    """A worker in this process, with its live parts. Raises `ConfigError` if an endpoint does not answer."""
    async with AsyncExitStack() as stack:
        builder = _Builder(setup, stack)
        for name in sorted(setup.agents):
            await builder.seat(name)
        await asyncio.gather(*(model.check() for model in builder.models.values() if isinstance(model, Endpoint)))
        compute = await stack.enter_async_context(RewardPool())
        yield LocalWorker(
            builder.seat,
            compute,
            run=setup.run,
            admission=builder.admission(),
            calls=builder.calls,
            deadlines=setup.deadlines,
            judge=at_once if setup.placeholder is None else Deferred(setup.placeholder),
        )


def agent_instance(instances: Mapping[str, Instance], name: str | None) -> Instance:
    """The agent of that name, else the only one."""
    agents = {key: one for key, one in instances.items() if one.kind == "responses_api_agents"}
    if name in agents:
        return agents[name]
    listed = (
        f"the configuration has {', '.join(agents)}" if agents else "the configuration has no agent: add config_paths"
    )
    if name is not None:
        raise ConfigError(f"unknown agent {name!r}{suggestion(name, agents)}; {listed}")
    if len(agents) != 1:
        raise ConfigError(f"which agent? Give +agent_name=…, or agent_ref in the row; {listed}")
    return next(iter(agents.values()))


def environment_instance(instances: Mapping[str, Instance], agent: Instance) -> Instance:
    """The environment that an agent plays in."""
    return instances[_reference(agent, "resources_server", "resources_servers")]


def environment_kind(instance: Instance) -> type[Environment[Any]]:
    """The class that an instance is made of."""
    return plugins.environment(instance.implementation, instance.entrypoint)


def faults(instances: Mapping[str, Instance]) -> Iterator[str]:
    """What would stop a launch, in every instance, before anything is opened: one line each."""
    for instance in instances.values():
        for check in _checks(instance):
            try:
                check()
            except CallerError as error:
                said = str(error)
                named = said.startswith((f"{instance.name}.", f"{instance.name}:"))
                yield said if named else f"{instance.at}: {said}"


def _checks(instance: Instance) -> Iterator[Callable[[], object]]:
    file = plugins.own_file(instance.kind, instance.implementation, instance.entrypoint)
    if file is not None and (not file.is_file() or plugins.is_program(file)):
        # What a program makes of its fields, only the program knows.
        yield lambda: plugins.is_program(file)
    elif instance.kind == "responses_api_models":
        yield lambda: _make_model(instance)
    elif instance.kind == "resources_servers":
        yield lambda: _begin_tasks(instance)
    else:
        yield lambda: _make_agent(instance)
        yield lambda: _reference(instance, "resources_server", "resources_servers")
        yield lambda: _reference(instance, "model_server", "responses_api_models")


def _begin_tasks(instance: Instance) -> None:
    """An environment that makes its own tasks may refuse its fields there."""
    kind = environment_kind(instance)
    if kind.makes_tasks():
        with _authors_code(instance):
            kind.tasks(own_fields(instance), 0)


async def check_endpoint(instances: Mapping[str, Instance], agent: str | None) -> None:
    """Raise `ConfigError` if the model of that agent, or of the only one, lives elsewhere and does not answer."""
    agents = [name for name, one in instances.items() if one.kind == "responses_api_agents"]
    name = agent or (agents[0] if len(agents) == 1 else None)
    if name not in agents or name is None:
        return
    reference = _reference(instances[name], "model_server", "responses_api_models")
    if reference in instances and isinstance(model := _make_model(instances[reference]), Endpoint):
        await model.check()


def identity_of(instances: Mapping[str, Instance], name: str, sampling: Mapping[str, Any]) -> Identity:
    """What must stay the same on one output, for an agent. Nothing is opened or loaded for it."""
    agent = instances[name]
    environment = environment_instance(instances, agent)
    kind = environment_kind(environment)
    return Identity(
        model=_make_model(instances[_reference(agent, "model_server", "responses_api_models")]).name,
        sampling=dict(sampling),
        environment=plugins.environment_name(environment.implementation),
        version=kind.version,
        environment_config=masked(own_fields(environment)),
        agent_config=masked(own_fields(agent)),
        other_models={field: _make_model(instances[model]).name for field, model in other_models(environment).items()},
    )


def refuse_deferring(instances: Mapping[str, Instance], name: str) -> None:
    """Raise `ConfigError` where what is not verified at once never can be."""
    kind = environment_kind(environment_instance(instances, instances[name]))
    if kind.verification == "unsupported":
        raise ConfigError(
            f"verify=defer: {kind.__name__} declares verification = unsupported, so its rollouts cannot be verified "
            "later; collect with verify=now"
        )


def fingerprints(instances: Mapping[str, Instance], agents: Iterable[str]) -> dict[str, str]:
    """A hash of the source of each agent's environment."""
    found = {}
    for name in agents:
        kind = environment_kind(environment_instance(instances, instances[name]))
        if source := inspect.getsourcefile(kind):
            found[name] = blake2b(Path(source).read_bytes(), digest_size=8).hexdigest()
    return found


def with_policy(config: Config[Any], policy: Instance | None) -> dict[str, Instance]:
    """The configuration's instances, all agents with the model `policy` if it is given."""
    if policy is None:
        return config.instances
    reference = {"type": "responses_api_models", "name": policy.name}
    agents = {
        name: msgspec.structs.replace(one, fields={**one.fields, "model_server": reference})
        for name, one in config.instances.items()
        if one.kind == "responses_api_agents"
    }
    return {**config.instances, **agents, policy.name: policy}


def _make_model(instance: Instance) -> Model:
    model: Model = _made(plugins.model(instance.implementation, instance.entrypoint), instance)
    return model


def _make_agent(instance: Instance) -> Agent:
    agent: Agent = _made(plugins.agent(instance.implementation, instance.entrypoint), instance)
    return agent


def _made(module: ModuleType, instance: Instance) -> Any:
    fields = convert(own_fields(instance), module.Fields, instance.at)
    with _authors_code(instance):
        return module.make(fields)


@contextmanager
def _authors_code(instance: Instance) -> Iterator[None]:
    """Somebody's own class may take its fields itself, and says in its own way that it does not know one."""
    try:
        yield
    except RollmillError:
        raise
    except Exception as error:
        raise ConfigError(f"{instance.at}: {describe(error)}") from error


class _Builder:
    """Builds each instance once, when it is first needed, and enters what has to be entered."""

    def __init__(self, setup: Setup, stack: AsyncExitStack) -> None:
        self._setup = setup
        self._instances = setup.instances
        self._stack = stack
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
        admission: LocalAdmission
        if places is not None:
            admission = Places(places)
        else:
            admission = ByModel(
                {name: _reference(agent, "model_server", "responses_api_models") for name, agent in agents.items()},
                lambda model: AdaptiveAdmission(self._calls_of(model).throttle, most=setup.most),
            )
        bounds = {
            name: bound
            for name, agent in agents.items()
            if (bound := setup.limits.environments.get(environment_instance(self._instances, agent).name))
        }
        return Bounded(admission, bounds) if bounds else admission

    async def _seat(self, name: str) -> Seat:
        instance = self._instances[name]
        model = await self._model(_reference(instance, "model_server", "responses_api_models"))
        world = await self._world(environment_instance(self._instances, instance))
        return Seat(world, _make_agent(instance), model)

    async def _model(self, name: str) -> Model:
        if name not in self.models:
            model = _make_model(self._instances[name])
            if isinstance(model, AbstractAsyncContextManager):
                await self._stack.enter_async_context(model)
            self.models[name] = model
            self._persistent[name] = Persistent(model, self._calls_of(name))
        return self._persistent[name]

    def _calls_of(self, name: str) -> Calls:
        """What all calls of one model share; made before the model is."""
        if name not in self._calls:
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
            )
            self.calls.append(self._calls[name])
        return self._calls[name]

    async def _world(self, instance: Instance) -> World:
        if instance.name not in self._worlds:
            kind = environment_kind(instance)
            config = own_fields(instance)
            models: dict[str, Model] = {}
            for field, model in other_models(instance).items():
                # By the field's name, which the environment's author chose, and by the instance's own.
                models[field] = models[model] = await self._model(model)
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


def own_fields(instance: Instance) -> dict[str, Any]:
    """The fields that are the implementation's own: neither common to all nor a reference to another instance."""
    return {
        key: value
        for key, value in instance.fields.items()
        if key not in _COMMON and not (isinstance(value, dict) and value.keys() == {"type", "name"})
    }


def other_models(environment: Instance) -> dict[str, str]:
    """The models that an environment has for itself, a judge for example: field by field, the instance."""
    return {
        field: value["name"]
        for field, value in environment.fields.items()
        if _is_reference(value, "responses_api_models")
    }


def _is_reference(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.keys() == {"type", "name"} and value["type"] == kind


def _reference(instance: Instance, field: str, kind: str) -> str:
    value = instance.fields.get(field)
    if not _is_reference(value, kind):
        raise ConfigError(f"{instance.at}.{field}: expected {{type: {kind}, name: …}}")
    return str(value["name"]) if isinstance(value, dict) else ""
