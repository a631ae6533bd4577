"""`rollmill validate` and `ng_validate`: whether a configuration can be launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollmill.cli.collect import Asked, add_arguments, asked_for
from rollmill.cli.config import ConfigOptions, read
from rollmill.cli.ng import Ng
from rollmill.collection.options import CollectOptions
from rollmill.config import Instance
from rollmill.errors import ConfigError
from rollmill.instances import agent_instance, faults, with_policy

ABOUT = "Check a configuration without launching it, and say all that is wrong with its instances."


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "validate",
        usage="rollmill validate [NAME] [--model MODEL] [options] [+key=value …]",
        help="check a configuration without launching it",
        description=f"{ABOUT} Takes what `rollmill collect` takes.",
    )
    add_arguments(parser)
    parser.set_defaults(handler=lambda arguments: _validate(asked_for(arguments)), options=CollectOptions)


def _validate(asked: Asked) -> int:
    config = read(asked, models_given=asked.policy is not None)
    if not config.instances:
        raise ConfigError("there is nothing to check: name an environment, or give files with +config_paths=[…]")
    instances = with_policy(config, asked.policy)
    found = [*faults(instances), *_agent_fault(instances, config.options.agent_name)]
    if found:
        raise ConfigError(found[0] if len(found) == 1 else "\n  ".join((f"{len(found)} mistakes:", *found)))
    print("✓ Config is valid.")
    return 0


def _agent_fault(instances: Mapping[str, Instance], name: str | None) -> Iterator[str]:
    if name is not None:
        try:
            agent_instance(instances, name)
        except ConfigError as error:
            yield str(error)


NG_VALIDATE = Ng(
    about=ABOUT,
    options=ConfigOptions,
    run=lambda words: _validate(Asked(list(words), [], {}, None)),
    more="Any other +key=value is part of the configuration.",
)
