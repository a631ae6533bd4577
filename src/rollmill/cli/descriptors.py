"""How many rollouts at once the files are enough for that a process may open."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from rollmill.collection.options import CollectOptions
from rollmill.config import Instance
from rollmill.cores import allow_many_files
from rollmill.errors import ConfigError

_KEPT = 64
"""For everything that is no connection to a model: the output, the index, processes, what an environment opens."""


def most_at_once(instances: Mapping[str, Instance]) -> int:
    """How many rollouts one process can connect with every model. Raises `ConfigError` where that is none."""
    allowed = allow_many_files()
    most = (allowed - _KEPT) // _models(instances)
    if most < 1:
        raise ConfigError(f"this process may open {allowed} files, which is too few: raise that with `ulimit -n 1024`")
    return most


def lowered(
    options: CollectOptions, instances: Mapping[str, Instance], most: int, say: Callable[[str], None]
) -> CollectOptions:
    """The options with no more rollouts at once than `most` in each process."""
    asked, together = options.num_samples_in_parallel, most * options.workers
    if asked is None or asked <= together:
        return options
    enough = -(-asked // options.workers) * _models(instances) + _KEPT
    say(f"Too few files may be open for {asked:,} rollouts at once: {together:,} it is; `ulimit -n {enough}` is enough")
    return msgspec.structs.replace(options, num_samples_in_parallel=together)


def _models(instances: Mapping[str, Instance]) -> int:
    return max(1, sum(one.kind == "responses_api_models" for one in instances.values()))
