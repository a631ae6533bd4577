"""`rollmill prepare` and `ng_prepare_data`: the datasets of agents, checked and put together for training."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rollmill.cli.collect import environment_layer
from rollmill.cli.missing import fetch, missing_of, refuse
from rollmill.cli.ng import Ng
from rollmill.cli.paths import existing
from rollmill.cli.say import say
from rollmill.cli.spelling import add_options, spelled
from rollmill.cli.tasks import AgentRoute
from rollmill.collection.report import counted
from rollmill.collection.source import Player
from rollmill.config import Config, Dataset, Instance, load
from rollmill.data.prepare import Source, prepare
from rollmill.data.prompts import load_prompt
from rollmill.errors import ConfigError
from rollmill.taskset import parse

ABOUT = "Check the datasets of agents, count what is in them, and put them together by type. No model is needed."

MORE = """\
Beside each dataset go <stem>_metrics.json and <stem>_prepare.jsonl, into the output folder <type>.jsonl and
<type>_metrics.json. Of a dataset in a place that is not yours, all of it goes into the output folder."""

_TYPES = {"train_preparation": ("train", "validation", "benchmark"), "example_validation": ("example",)}
_POLICY = dict.fromkeys(("policy_base_url", "policy_api_key", "policy_model_name"), "")
"""What configurations of models ask for, and nothing here does."""


class PrepareOptions(Struct, frozen=True, kw_only=True):
    """What is prepared, and where it goes."""

    output_dirpath: Annotated[str, Meta(min_length=1)]
    """The folder for the prepared data, made if it is not there."""
    mode: Literal["train_preparation", "example_validation"]
    """`train_preparation` takes the datasets of type train, validation and benchmark, `example_validation` those of
    type example."""
    should_download: bool = False
    """Fetch datasets that are not here, from the source that their configuration names."""
    data_source: Literal["huggingface", "gitlab"] = "huggingface"
    """Which source counts where a dataset names both."""
    overwrite_metrics_conflicts: bool = False
    """Write over metrics of an earlier time that differ, instead of stopping."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "prepare",
        help="check datasets, and put them together for training",
        description=ABOUT,
        epilog=MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags = {
        "--out": "output_dirpath",
        "--mode": "mode",
        "--download": "should_download",
        "--source": "data_source",
        "--overwrite": "overwrite_metrics_conflicts",
    }
    add_options(parser, PrepareOptions, flags, names="NAME…", about="environments, whose configurations are taken")
    parser.set_defaults(handler=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    asked = spelled(arguments)
    files: list[str] = []
    for name in asked.names:
        found, _ = environment_layer(name)
        if not found:
            raise ConfigError(f"{name} has no configuration, and so no datasets: write one, with `datasets`")
        files += found
    return _run(asked.words, asked.layer, files)


def _run(words: Sequence[str], initial: Mapping[str, Any] | None = None, files: Sequence[str] = ()) -> int:
    given = {**_POLICY, **(initial or {})}
    config = load(words, options=PrepareOptions, files=files, initial=given, models_given=True)
    for warning in config.warnings:
        say(warning)
    for line in lines(config, config.options):
        print(line)
    return 0


def lines(config: Config[Any], options: PrepareOptions) -> Iterator[str]:
    """What was made of the datasets of a configuration; it is made while this is read."""
    wanted = list(_in_scope(config.instances, options.mode))
    missing = missing_of(dataset for _, dataset in wanted)
    if options.should_download and options.mode == "train_preparation":
        fetch(missing, options.data_source, config.tree.get("hf_token"))
    elif missing:
        refuse(missing, downloads=options.mode == "train_preparation")
    sources = [_source(config.instances, agent, dataset) for agent, dataset in wanted]
    out = Path(options.output_dirpath)
    made = prepare(sources, out, overwrite=options.overwrite_metrics_conflicts)
    for source in sources:
        yield f"{source.agent}: {source.dataset.name} ({source.dataset.type}), {source.path}"
        why = "" if source.has_own_place else " (in the output folder: that of the dataset is not yours to write to)"
        yield f"  {source.beside(out, 'metrics.json')}, {source.beside(out, 'prepare.jsonl')}{why}"
    for one in made:
        yield f"Prepared: {one.path} ({counted(one.rows, 'row')}); {one.metrics}"


def _in_scope(instances: Mapping[str, Instance], mode: str) -> Iterator[tuple[str, Dataset]]:
    """The datasets of that mode, each with the agent that plays it."""
    agents = [one for one in instances.values() if one.kind == "responses_api_agents"]
    if not agents:
        raise ConfigError("the configuration has no agent: name an environment, or add config_paths")
    found = [(one.name, dataset) for one in agents for dataset in one.datasets]
    wanted = [(agent, dataset) for agent, dataset in found if dataset.type in _TYPES[mode]]
    if not wanted:
        there = ", ".join(f"{agent}: {dataset.name} ({dataset.type})" for agent, dataset in found) or "none at all"
        raise ConfigError(f"mode={mode} takes datasets of type {', '.join(_TYPES[mode])}, and there are {there}")
    return iter(wanted)


def _source(instances: Mapping[str, Instance], agent: str, dataset: Dataset) -> Source:
    # An environment that is somebody's own program checks its rows itself.
    player = AgentRoute(instances, agent, elsewhere=instances)(None)
    prompt = dataset.extra.get("prompt_config")
    return Source(
        agent,
        dataset,
        existing(dataset.jsonl_fpath, f"the dataset {dataset.name} of {agent}"),
        _check(player),
        None if prompt is None else load_prompt(existing(str(prompt), f"prompt_config of {dataset.name}")),
    )


def _check(player: Player) -> Callable[[bytes, str], None]:
    def check(content: bytes, place: str) -> None:
        task = parse(content, player.task_type, place)
        try:
            player.check(task)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None

    return check


NG_PREPARE_DATA = Ng(about=ABOUT, options=PrepareOptions, run=_run, more=MORE)
