"""From a configuration, or from objects, to live parts: the one place that knows what runs where."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from rollmill import plugins
from rollmill.agent import Agent
from rollmill.collection.collector import Collector, Forgetful, Recorder
from rollmill.collection.plan import Plan
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.source import Planned
from rollmill.collection.worker import Job
from rollmill.config import Config, Instance, convert, masked
from rollmill.environment import Compute, World, opened
from rollmill.errors import CallerError, ConfigError, suggestion
from rollmill.model import Endpoint, Model, Sampling
from rollmill.rollout import Deadlines, play
from rollmill.store.journal import Journal
from rollmill.store.ledger import Ledger
from rollmill.store.manifest import Identity, begin
from rollmill.store.recorder import Recorder as JournalRecorder
from rollmill.types import Rollout, Task
from rollmill.verification.pool import RewardPool

PLACES = 64
"""How many rollouts run at once where neither the caller nor the model says."""

_COMMON = {"entrypoint", "host", "port", "num_workers", "domain", "datasets", "description", "verified", "verified_url"}


class Seat(Struct, frozen=True):
    """Everything that one agent of a configuration plays with."""

    world: World
    agent: Agent
    model: Model


def places_of(model: Model) -> int:
    """How many rollouts a model can well serve at once."""
    return getattr(model, "places", None) or PLACES


class LocalWorker:
    """Plays in this process, with the objects themselves."""

    def __init__(self, seats: Mapping[str, Seat], compute: Compute, deadlines: Deadlines) -> None:
        self.seats = seats
        self._compute = compute
        self._deadlines = deadlines

    @property
    def places(self) -> int:
        return min(places_of(seat.model) for seat in self.seats.values())

    async def play(self, job: Job) -> Rollout:
        seat = self.seats[job.slot.agent]
        try:
            return await play(
                job.task,
                seat.world,
                seat.agent,
                seat.model,
                slot=job.slot,
                attempt=job.attempt,
                compute=self._compute,
                deadlines=self._deadlines,
            )
        except CallerError as error:
            raise type(error)(f"task {job.slot.task_index}: {error}") from error


@asynccontextmanager
async def assemble(
    config: Config[Any],
    agents: Iterable[str],
    *,
    policy: Instance | None = None,
    deadlines: Deadlines = Deadlines(),
) -> AsyncIterator[LocalWorker]:
    """The live parts of some of a configuration's agents, all with the model `policy` if it is given.

    Raises `ConfigError` if an endpoint does not answer.
    """
    async with AsyncExitStack() as stack:
        builder = _Builder(_with_policy(config, policy), stack)
        seats = {name: await builder.seat(name) for name in sorted(agents)}
        await asyncio.gather(*(model.check() for model in builder.models.values() if isinstance(model, Endpoint)))
        compute = await stack.enter_async_context(RewardPool())
        yield LocalWorker(seats, compute, deadlines)


def agent_instance(config: Config[Any], name: str | None) -> Instance:
    """The agent of that name, else the only one."""
    agents = {key: one for key, one in config.instances.items() if one.kind == "responses_api_agents"}
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


def environment_instance(config: Config[Any], agent: Instance) -> Instance:
    """The environment that an agent plays in."""
    return config.instances[_reference(agent, "resources_server", "resources_servers")]


async def check_endpoint(config: Config[Any], agent: str | None, policy: Instance | None) -> None:
    """Raise `ConfigError` if the model of that agent, or of the only one, lives elsewhere and does not answer."""
    instances = _with_policy(config, policy)
    agents = [name for name, one in instances.items() if one.kind == "responses_api_agents"]
    name = agent or (agents[0] if len(agents) == 1 else None)
    if name not in agents or name is None:
        return
    reference = _reference(instances[name], "model_server", "responses_api_models")
    if reference in instances and isinstance(model := _make_model(instances[reference]), Endpoint):
        await model.check()


def identities(
    config: Config[Any], agents: Iterable[str], *, sampling: Mapping[str, Any], policy: Instance | None = None
) -> dict[str, Identity]:
    """What must stay the same on one output, for each agent. Nothing is opened or loaded for it."""
    instances = _with_policy(config, policy)
    found: dict[str, Identity] = {}
    for name in agents:
        agent = instances[name]
        environment = instances[_reference(agent, "resources_server", "resources_servers")]
        kind = plugins.environment(environment.implementation)
        found[name] = Identity(
            model=_make_model(instances[_reference(agent, "model_server", "responses_api_models")]).name,
            sampling=dict(sampling),
            environment=plugins.environment_name(environment.implementation),
            version=kind.version,
            environment_config=masked(own_fields(environment)),
            agent_config=masked(own_fields(agent)),
            other_models={
                field: _make_model(instances[value["name"]]).name
                for field, value in environment.fields.items()
                if _is_reference(value, "responses_api_models")
            },
        )
    return found


def _with_policy(config: Config[Any], policy: Instance | None) -> dict[str, Instance]:
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
    module = plugins.model(instance.implementation)
    model: Model = module.make(convert(own_fields(instance), module.Fields, instance.at))
    return model


class _Builder:
    """Builds each instance once, and enters what has to be entered."""

    def __init__(self, instances: Mapping[str, Instance], stack: AsyncExitStack) -> None:
        self._instances = instances
        self._stack = stack
        self.models: dict[str, Model] = {}
        self._worlds: dict[str, World] = {}

    async def seat(self, name: str) -> Seat:
        instance = self._instances[name]
        model = await self._model(_reference(instance, "model_server", "responses_api_models"))
        world = await self._world(self._instances[_reference(instance, "resources_server", "resources_servers")])
        module = plugins.agent(instance.implementation)
        return Seat(world, module.make(convert(own_fields(instance), module.Fields, instance.at)), model)

    async def _model(self, name: str) -> Model:
        if name not in self.models:
            model = _make_model(self._instances[name])
            if isinstance(model, AbstractAsyncContextManager):
                await self._stack.enter_async_context(model)
            self.models[name] = model
        return self.models[name]

    async def _world(self, instance: Instance) -> World:
        if instance.name not in self._worlds:
            kind = plugins.environment(instance.implementation)
            config = own_fields(instance)
            models: dict[str, Model] = {}
            for field, value in instance.fields.items():
                if _is_reference(value, "responses_api_models"):
                    # By the field's name, which the environment's author chose, and by the instance's own.
                    models[field] = models[value["name"]] = await self._model(value["name"])
            world = await self._stack.enter_async_context(opened(kind, config, models))
            self._worlds[instance.name] = world
        return self._worlds[instance.name]


def own_fields(instance: Instance) -> dict[str, Any]:
    """The fields that are the implementation's own: neither common to all nor a reference to another instance."""
    return {
        key: value
        for key, value in instance.fields.items()
        if key not in _COMMON and not (isinstance(value, dict) and value.keys() == {"type", "name"})
    }


def _is_reference(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.keys() == {"type", "name"} and value["type"] == kind


def _reference(instance: Instance, field: str, kind: str) -> str:
    value = instance.fields.get(field)
    if not _is_reference(value, kind):
        raise ConfigError(f"{instance.at}.{field}: expected {{type: {kind}, name: …}}")
    return str(value["name"]) if isinstance(value, dict) else ""


# The Python way in.


async def collect(
    tasks: Iterable[Task],
    environment: World,
    agent: Agent,
    model: Model,
    *,
    repeats: int = 1,
    places: int | None = None,
    out: str | Path | None = None,
    sampling: Sampling | Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    models: Mapping[str, Model] | None = None,
    retry: RetryPolicy = RetryPolicy(),
    deadlines: Deadlines = Deadlines(),
) -> AsyncIterator[Rollout]:
    """Play tasks, `places` at once, and give each rollout when it ends.

    `config` and `models` are the environment's own: its settings, and for example a judge. With `out` rollouts are
    recorded too, and what that file holds already is not played again. Leaving the loop early stops the rest.
    """
    overrides = sampling.overrides() if isinstance(sampling, Sampling) else dict(sampling or {})
    name = type(agent).__name__
    identity = Identity(
        model.name,
        overrides,
        *_identity_of(environment),
        environment_config=masked(config or {}),
        other_models={name: model.name for name, model in (models or {}).items()},
    )
    places = places or places_of(model)
    ended: asyncio.Queue[Rollout | None] = asyncio.Queue(maxsize=places)
    async with AsyncExitStack() as stack:
        if isinstance(model, AbstractAsyncContextManager):
            await stack.enter_async_context(model)
        seat = Seat(await stack.enter_async_context(opened(environment, config, models)), agent, model)
        worker = LocalWorker({name: seat}, await stack.enter_async_context(RewardPool()), deadlines)
        ledger, recorder = _recording(stack, out, {name: identity})
        plan = Plan((Planned(name, task) for task in tasks), ledger, repeats=lambda _: repeats, overrides=overrides)
        collector = Collector(worker, plan, places=places, recorder=recorder, deliver=ended.put, retry=retry)
        running = asyncio.create_task(_run_to_end(collector, ended))
        try:
            while (rollout := await ended.get()) is not None:
                yield rollout
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _identity_of(world: World) -> tuple[str, str]:
    """The name and the version of what makes an environment."""
    kind = world.func if isinstance(world, functools.partial) else world
    return getattr(kind, "__name__", type(kind).__name__), getattr(kind, "version", "1")


async def _run_to_end(collector: Collector, ended: asyncio.Queue[Rollout | None]) -> None:
    try:
        await collector.run()
    except asyncio.CancelledError:
        # Whoever was reading has gone: a last word would wait for ever in a full queue.
        raise
    except BaseException:
        await ended.put(None)
        raise
    await ended.put(None)


def _recording(stack: AsyncExitStack, out: str | Path | None, agents: dict[str, Identity]) -> tuple[Ledger, Recorder]:
    ledger = Ledger()
    if out is None:
        return ledger, Forgetful()
    journal = stack.enter_context(Journal(Path(out)))
    for summary in journal.summaries():
        ledger.add(summary)
    import rollmill

    manifest = begin(journal.folder, version=rollmill.__version__, command=[], agents=agents, config={})
    return ledger, stack.enter_context(JournalRecorder(journal, manifest.run))
