"""What all workers share, divided between them: together they never do more than one alone may."""

from __future__ import annotations

import msgspec

from rollmill.collection.options import ModelLimits
from rollmill.instances import environment_of
from rollmill.launch import Setup


def parts_of(setup: Setup, count: int) -> list[Setup]:
    """What each of `count` workers is told; of fewer, where a limit leaves nothing for more of them."""
    limits = setup.limits.models
    bounds = [one.concurrency for name, one in limits.items() if name in setup.instances]
    count = min([count, *(bound for bound in (setup.places, *bounds) if bound is not None)])
    return [_part(setup, number, count) for number in range(count)]


def bounds_of(setup: Setup) -> dict[str, int]:
    """How many rollouts of an agent may run at once in all workers together."""
    agents = {name: one for name, one in setup.instances.items() if one.kind == "responses_api_agents"}
    environments = {name: environment_of(setup.instances, one) for name, one in agents.items()}
    most = setup.limits.environments
    return {agent: most[one.name] for agent, one in environments.items() if one is not None and one.name in most}


def _part(setup: Setup, number: int, count: int) -> Setup:
    models = {name: _of_limits(one, number, count) for name, one in setup.limits.models.items()}
    # Those of environments are kept by whoever leases: a bound of one cannot be divided.
    limits = msgspec.structs.replace(setup.limits, models=models, environments={})
    return msgspec.structs.replace(setup, places=_of_number(setup.places, number, count), limits=limits)


def _of_limits(limits: ModelLimits, number: int, count: int) -> ModelLimits:
    return ModelLimits(
        concurrency=_of_number(limits.concurrency, number, count),
        requests_per_minute=limits.requests_per_minute and limits.requests_per_minute / count,
        tokens_per_minute=limits.tokens_per_minute and limits.tokens_per_minute / count,
    )


def _of_number(number: int | None, place: int, count: int) -> int | None:
    """The parts differ by one at most, and add up."""
    return None if number is None else number // count + (place < number % count)
