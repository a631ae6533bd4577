"""From a command's configuration to what a worker is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollmill.collection.limits import MOST_RUNNING
from rollmill.collection.options import CollectOptions
from rollmill.config import Config, Instance
from rollmill.errors import ConfigError
from rollmill.launch import Setup


def setup_of(
    options: CollectOptions,
    instances: Mapping[str, Instance],
    agents: tuple[str, ...],
    run: str,
    *,
    most: int,
    addresses: Mapping[str, str] = {},
) -> Setup:
    """`most` rollouts run at once in one process, whatever the models serve."""
    return Setup(
        instances=dict(instances),
        agents=agents,
        run=run,
        places=options.num_samples_in_parallel,
        most=min(most, MOST_RUNNING),
        limits=options.limits,
        attempts=options.max_attempts,
        outage_s=options.outage_s,
        deadlines=options.deadlines,
        placeholder=options.skip_verification_reward if options.verify == "defer" else None,
        addresses=dict(addresses),
        access_token=options.access_token.reveal() if options.access_token else "",
    )


def refuse_incomplete(config: Config[Any], policy: Instance | None, absent: str = "") -> None:
    """Raise `ConfigError` where there is nothing to play, or nothing to play it with; `absent` says of what service."""
    if not config.instances:
        looked = f"{absent}; start services with ng_run, or else: " if absent else ""
        raise ConfigError(
            f"{looked}nothing to play: name an environment (rollmill collect arithmetic …), or give configuration "
            "files (+config_paths=[resources_servers/mcqa/configs/mcqa.yaml,…], or config_paths in env.yaml)"
        )
    models = [name for name, one in config.instances.items() if one.kind == "responses_api_models"]
    if policy is None and not models:
        raise ConfigError(
            "no model: give --model embedded (on this machine), --model openai:NAME, --model vllm:NAME --base-url URL, "
            "or a configuration such as responses_api_models/openai_model/configs/openai_model.yaml in config_paths"
        )
