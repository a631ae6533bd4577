"""Which tasks a collection plays, and which agent plays each of them."""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rollmill.cli.paths import existing
from rollmill.collection.beside import beside
from rollmill.collection.followed import Followed
from rollmill.collection.listing import Listing, Named, Pattern, is_pattern
from rollmill.collection.options import CollectOptions
from rollmill.collection.piped import STDIN
from rollmill.collection.source import Player, Procedure, Prompter, Reader, Route, RowFile, Several, Source
from rollmill.config import Dataset, Instance, find_path
from rollmill.data.prompts import load_prompt
from rollmill.errors import ConfigError
from rollmill.instances import agent_instance, environment_instance, environment_of, known_kind, own_fields
from rollmill.types import AgentRef, Task

PROCEDURE_LIMIT = 100
"""How many tasks are made where an environment makes its own and nobody says how many."""


def tasks_of(
    options: CollectOptions,
    instances: Mapping[str, Instance],
    say: Callable[[str], None],
    elsewhere: Collection[str] = (),
) -> Source:
    """The tasks: the input that was named, else the agent's own datasets, else the environment's procedure."""
    limit = options.limit or None
    route = AgentRoute(instances, options.agent_name, elsewhere)
    prompter = load_prompt(existing(options.prompt_config, "prompt_config")) if options.prompt_config else None
    if options.follow:
        return _followed(options, Reader(route, prompter), limit, say)
    if options.follow_idle_s is not None:
        raise ConfigError("follow_idle_s: it ends a run that follows its input, so give +follow=true, too")
    if options.input_jsonl_fpath is not None:
        return _named(options.input_jsonl_fpath, route, limit, prompter)
    agent = agent_instance(instances, options.agent_name)
    datasets = {dataset.type: dataset for dataset in reversed(agent.datasets)}
    kind = known_kind(environment_of(instances, agent), elsewhere)
    train = datasets.get("train")
    if train is not None and (path := find_path(train.jsonl_fpath, working_dir=Path.cwd())):
        return RowFile(_chosen(path, train, say), route, limit, prompter=prompter)
    if train is not None:
        say(f"The dataset {train.name} of {agent.name} is not here: {train.jsonl_fpath}")
    if kind is not None and kind.makes_tasks():
        if prompter is not None:
            raise ConfigError(f"prompt_config: {agent.name} makes its own tasks; give rows with +input_jsonl_fpath=…")
        wanted = limit or PROCEDURE_LIMIT
        say(f"No input file: {agent.name} makes {wanted} tasks of its own (seed {options.seed})")
        fields = own_fields(environment_instance(instances, agent))
        return Procedure(agent.name, lambda: kind.tasks(fields, options.seed), wanted)
    example = datasets.get("example")
    if example is not None and (path := find_path(example.jsonl_fpath, working_dir=Path.cwd())):
        return RowFile(_chosen(path, example, say), route, limit, prompter=prompter)
    raise ConfigError(f"{agent.name} has no dataset here: give the tasks with +input_jsonl_fpath=…")


def _named(names: str | list[str], route: Route, limit: int | None, prompter: Prompter | None) -> Source:
    paths = [path for name in ([names] if isinstance(names, str) else names) for path in _paths(name)]
    if len(paths) == 1:
        return RowFile(paths[0], route, limit, prompter=prompter)
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("input_jsonl_fpath: names a file twice; to play tasks more often, raise num_repeats")
    return Several([RowFile(path, route, prompter=prompter) for path in paths], limit)


def _paths(name: str) -> list[Path]:
    """A file, those of a pattern in the order of their names, or standard input."""
    if name == "-":
        return [STDIN]
    if is_pattern(name) and find_path(name, working_dir=Path.cwd()) is None:
        found = sorted(Path(path) for path in glob.glob(name, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not found:
            raise ConfigError(f"input_jsonl_fpath: no file matches {name}")
        return [_existing(str(path)) for path in found]
    return [_existing(name)]


def _followed(options: CollectOptions, reader: Reader, limit: int | None, say: Callable[[str], None]) -> Followed:
    """The input that was named, as it is and as it grows."""
    names = options.input_jsonl_fpath
    if names is None:
        raise ConfigError("follow: which input grows? Give +input_jsonl_fpath=…: a file, a folder, a pattern, or -")
    listings: list[Listing] = []
    streams: list[Path] = []
    for name in [names] if isinstance(names, str) else names:
        given = Path(name).expanduser()
        path = given if given.exists() else find_path(name, working_dir=Path.cwd())
        if name == "-":
            streams.append(STDIN)
        elif path is not None and not (path.is_file() or path.is_dir()):
            streams.append(path)
        elif path is None and is_pattern(name):
            listings.append(Pattern(name))
        elif path is None and not given.absolute().parent.is_dir():
            raise ConfigError(f"input_jsonl_fpath: {name} is not there, and neither is its folder")
        else:
            listings.append(Named((path or given).absolute()))
    source = Followed(listings, streams, reader, limit, say=say)
    _refuse_to_follow(source, Path(options.output_jsonl_fpath))
    return source


def _refuse_to_follow(source: Followed, output: Path) -> None:
    """Raise `ConfigError` where a run would read what it writes."""
    for path in (output, beside(output, "materialized_inputs.jsonl")):
        if source.takes(path):
            raise ConfigError(
                f"output {output}: {path.name} would be among the inputs that are followed, and be played for ever; "
                "put it into another folder"
            )


def _chosen(path: Path, dataset: Dataset, say: Callable[[str], None]) -> Path:
    say(f"No input file: taking the {dataset.type} dataset, {path}")
    return path


def _existing(path: str) -> Path:
    return existing(path, "input_jsonl_fpath").absolute()


class AgentRoute:
    """Who plays a row, by the agent that it names."""

    def __init__(self, instances: Mapping[str, Instance], default: str | None, elsewhere: Collection[str] = ()) -> None:
        self._instances, self._default, self._elsewhere = instances, default, elsewhere
        self._known: dict[str | None, Player] = {}

    def __call__(self, ref: AgentRef | None) -> Player:
        name = ref.name if ref else self._default
        if name not in self._known:
            agent = agent_instance(self._instances, name)
            self._known[name] = self._player(agent)
        return self._known[name]

    def _player(self, agent: Instance) -> Player:
        environment = environment_of(self._instances, agent)
        kind = known_kind(environment, self._elsewhere)
        if environment is None or kind is None:
            # Its own service says what is wrong with a row.
            return Player(agent.name, Task)
        fields = own_fields(environment)
        return Player(agent.name, kind.task_type, lambda task: kind.check_task(task, fields))
