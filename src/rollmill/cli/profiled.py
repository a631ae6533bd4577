"""The profile of a command's own process, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollmill.collection.options import CollectOptions
from rollmill.config import Config
from rollmill.errors import ConfigError
from rollmill.profiling.profiler import Profiler


@contextmanager
def profiled(config: Config[CollectOptions]) -> Iterator[Profiler | None]:
    """Measures until it is left, however that happens; then the profile is written, and its path said."""
    profiler = _profiler(config)
    if profiler is None:
        yield None
        return
    profiler.start()
    try:
        yield profiler
    finally:
        profiler.stop()
        # Of a command that was refused there is nothing to say, and no older profile is lost to it.
        if profiler.spans.stages:
            print(f"Profile: {profiler.write()}")


def _profiler(config: Config[CollectOptions]) -> Profiler | None:
    options = config.options
    if not options.profiling_enabled:
        return None
    if options.profiling_results_dirpath is None:
        raise ConfigError(
            "profiling_enabled=true: where does the profile go? Give +profiling_results_dirpath=FOLDER, for example "
            "+profiling_results_dirpath=results/profiling"
        )
    agents = [name for name, one in config.instances.items() if one.kind == "responses_api_agents"]
    name = options.agent_name or (agents[0] if len(agents) == 1 else "collection")
    return Profiler(name, Path(options.profiling_results_dirpath, name))
