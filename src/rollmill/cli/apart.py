"""Services for a collection whose instances cannot all be objects in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from rollmill.cli.say import say
from rollmill.config import Config, Instance, convert, masked
from rollmill.config.secrets import secret_values
from rollmill.services.layout import SHARED, groups
from rollmill.services.options import ServeOptions

if TYPE_CHECKING:
    from rollmill.services.supervisor import Supervisor


@asynccontextmanager
async def served_if_needed(config: Config[Any], instances: Mapping[str, Instance]) -> AsyncIterator[dict[str, str]]:
    """Where the instances are: nothing where all of them are made here, else the services that run meanwhile."""
    options = options_of(config)
    apart = [group.name for group in groups(instances, options) if group.name != SHARED]
    if not apart:
        yield {}
        return
    say(f"Starting services, for what plays in a process of its own: {', '.join(apart)}")
    async with supervisor_of(config, instances, options, head=False) as supervisor:
        yield supervisor.addresses


def supervisor_of(
    config: Config[Any], instances: Mapping[str, Instance], options: ServeOptions, **how: bool
) -> Supervisor:
    # A server is not loaded where nothing is served.
    from rollmill.services.supervisor import Supervisor

    own = {name: {one.kind: {one.implementation: one.fields}} for name, one in instances.items()}
    whole = config.tree | own
    return Supervisor(instances, options, tree=masked(whole), secrets=[*secret_values(whole)], say=say, **how)


def options_of(config: Config[Any]) -> ServeOptions:
    """What the configuration says of serving."""
    names = {field.encode_name for field in msgspec.structs.fields(ServeOptions)}
    return convert({key: value for key, value in config.tree.items() if key in names}, ServeOptions)
