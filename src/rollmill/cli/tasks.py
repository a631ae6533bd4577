"""Which tasks a collection plays, and which agent plays each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollmill import plugins
from rollmill.collection.options import CollectOptions
from rollmill.collection.source import Player, Procedure, RowFile, Source
from rollmill.config import Config, Dataset, find_path
from rollmill.errors import ConfigError
from rollmill.launch import agent_instance, environment_instance, own_fields
from rollmill.types import AgentRef

PROCEDURE_LIMIT = 100
"""How many tasks are made where an environment makes its own and nobody says how many."""


def tasks_of(config: Config[CollectOptions], say: Callable[[str], None]) -> Source:
    """The tasks: the input that was named, else the agent's own datasets, else the environment's procedure."""
    options = config.options
    limit = options.limit or None
    route = _Route(config)
    if options.input_jsonl_fpath is not None:
        return RowFile(_existing(options.input_jsonl_fpath), route, limit)
    agent = agent_instance(config, options.agent_name)
    datasets = {dataset.type: dataset for dataset in reversed(agent.datasets)}
    kind = plugins.environment(environment_instance(config, agent).implementation)
    train = datasets.get("train")
    if train is not None and (path := find_path(train.jsonl_fpath, working_dir=Path.cwd())):
        return RowFile(_chosen(path, train, say), route, limit)
    if train is not None:
        say(f"The dataset {train.name} of {agent.name} is not here: {train.jsonl_fpath}")
    if kind.makes_tasks():
        wanted = limit or PROCEDURE_LIMIT
        say(f"No input file: {agent.name} makes {wanted} tasks of its own (seed {options.seed})")
        fields = own_fields(environment_instance(config, agent))
        return Procedure(agent.name, lambda: kind.tasks(fields, options.seed), wanted)
    example = datasets.get("example")
    if example is not None and (path := find_path(example.jsonl_fpath, working_dir=Path.cwd())):
        return RowFile(_chosen(path, example, say), route, limit)
    raise ConfigError(f"{agent.name} has no dataset here: give the tasks with +input_jsonl_fpath=…")


def _chosen(path: Path, dataset: Dataset, say: Callable[[str], None]) -> Path:
    say(f"No input file: taking the {dataset.type} dataset, {path}")
    return path


def _existing(path: str) -> Path:
    found = find_path(path, working_dir=Path.cwd())
    if found is None or not found.is_file():
        # It is read more than once: through, then for what is missing, then to be played.
        what = "is no regular file" if found is not None else "is not there"
        raise ConfigError(f"input_jsonl_fpath: {path} {what}")
    return found


class _Route:
    """Who plays a row, by the agent that it names."""

    def __init__(self, config: Config[CollectOptions]) -> None:
        self._config = config
        self._known: dict[str | None, Player] = {}

    def __call__(self, ref: AgentRef | None) -> Player:
        name = ref.name if ref else self._config.options.agent_name
        if name not in self._known:
            agent = agent_instance(self._config, name)
            environment = environment_instance(self._config, agent)
            kind = plugins.environment(environment.implementation)
            fields = own_fields(environment)
            self._known[name] = Player(agent.name, kind.task_type, lambda task: kind.check_task(task, fields))
        return self._known[name]
