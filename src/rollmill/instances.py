"""What the instances of a configuration are: their classes, references and identities, before anything is opened."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from rollmill import plugins
from rollmill.agent import Agent
from rollmill.config import Config, Instance, convert, masked
from rollmill.environment import Environment
from rollmill.errors import CallerError, ConfigError, RollmillError, describe, suggestion
from rollmill.model import Model
from rollmill.store.manifest import Identity

_COMMON = {
    *("entrypoint", "host", "port", "num_workers", "isolation", "url", "domain", "datasets", "description"),
    *("verified", "verified_url"),
}


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
    return instances[reference(agent, "resources_server", "resources_servers")]


def addresses_of(instances: Mapping[str, Instance]) -> dict[str, str]:
    """The URLs of those that are served already, by whomever."""
    return {name: one.url for name, one in instances.items() if one.url}


def environment_of(instances: Mapping[str, Instance], agent: Instance) -> Instance | None:
    """The same, where an agent may be a program that plays in one of its own."""
    return environment_instance(instances, agent) if "resources_server" in agent.fields else None


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
    if instance.url:
        return
    file = plugins.own_file(instance.kind, instance.implementation, instance.entrypoint)
    if file is not None and (not file.is_file() or plugins.is_program(file)):
        # What a program makes of its fields, only the program knows.
        yield lambda: plugins.is_program(file)
    elif instance.kind == "responses_api_models":
        yield lambda: make_model(instance)
    elif instance.kind == "resources_servers":
        yield lambda: _begin_tasks(instance)
    else:
        yield lambda: make_agent(instance)
        yield lambda: reference(instance, "resources_server", "resources_servers")
        yield lambda: reference(instance, "model_server", "responses_api_models")


def _begin_tasks(instance: Instance) -> None:
    """An environment that makes its own tasks may refuse its fields there."""
    kind = environment_kind(instance)
    if kind.makes_tasks():
        with _authors_code(instance):
            kind.tasks(own_fields(instance), 0)


def identity_of(
    instances: Mapping[str, Instance], name: str, sampling: Mapping[str, Any], elsewhere: Collection[str] = ()
) -> Identity:
    """What must stay the same on one output, for an agent. Nothing is opened or loaded for it."""
    agent = instances[name]
    environment = environment_of(instances, agent)
    kind = known_kind(environment, elsewhere)
    return Identity(
        model=model_name(instances, agent),
        sampling=dict(sampling),
        environment=_environment_name(environment, kind) if environment else agent.implementation,
        version=kind.version if kind else "1",
        environment_config=masked(own_fields(environment)) if environment else {},
        agent_config=masked(own_fields(agent)),
        other_models={
            field: name_of(instances[model])
            for field, model in (other_models(environment).items() if environment else ())
        },
    )


def _environment_name(environment: Instance, kind: type[Environment[Any]] | None) -> str:
    return plugins.environment_name(environment.implementation) if kind else environment.implementation


def known_kind(environment: Instance | None, elsewhere: Collection[str]) -> type[Environment[Any]] | None:
    """The class of an environment, where it is known here: one that lives elsewhere may be anybody's program."""
    if environment is None:
        return None
    try:
        return environment_kind(environment)
    except ConfigError:
        if environment.name not in elsewhere:
            raise
        return None


def model_name(instances: Mapping[str, Instance], agent: Instance) -> str:
    """What the model of an agent, or a model itself, is called."""
    if agent.kind == "responses_api_models":
        return name_of(agent)
    if not is_reference(agent.fields.get("model_server"), "responses_api_models"):
        return agent.name
    return name_of(instances[reference(agent, "model_server", "responses_api_models")])


def name_of(model: Instance) -> str:
    """A model that somebody else serves has the name of its instance, unless it says another."""
    if model.url:
        return str(model.fields.get("model", model.name))
    file = plugins.own_file(model.kind, model.implementation, model.entrypoint)
    if file is not None and plugins.is_program(file):
        return model.name
    return make_model(model).name


def refuse_deferring(instances: Mapping[str, Instance], name: str, elsewhere: Collection[str] = ()) -> None:
    """Raise `ConfigError` where what is not verified at once never can be."""
    if name in elsewhere:
        raise ConfigError(
            "verify=defer: services verify what they play; to play without them, give the configuration in config_paths"
        )
    environment = environment_instance(instances, instances[name])
    kind = known_kind(environment, elsewhere)
    if kind is None:
        raise ConfigError(
            f"verify=defer: {environment.name} is somebody's own program, which says nothing of verifying"
        )
    if kind.verification == "unsupported":
        raise ConfigError(
            f"verify=defer: {kind.__name__} declares verification = unsupported, so its rollouts cannot be verified "
            "later; collect with verify=now"
        )


def fingerprints(
    instances: Mapping[str, Instance], agents: Iterable[str], elsewhere: Collection[str] = ()
) -> dict[str, str]:
    """A hash of the source of each agent's environment, where it is known here."""
    found = {}
    for name in agents:
        kind = known_kind(environment_of(instances, instances[name]), elsewhere)
        if kind is not None and (source := inspect.getsourcefile(kind)):
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


def make_model(instance: Instance) -> Model:
    model: Model = _made(plugins.model(instance.implementation, instance.entrypoint), instance)
    return model


def make_agent(instance: Instance) -> Agent:
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
        if is_reference(value, "responses_api_models")
    }


def is_reference(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.keys() == {"type", "name"} and value["type"] == kind


def reference(instance: Instance, field: str, kind: str) -> str:
    value = instance.fields.get(field)
    if not is_reference(value, kind):
        raise ConfigError(f"{instance.at}.{field}: expected {{type: {kind}, name: …}}")
    return str(value["name"]) if isinstance(value, dict) else ""
