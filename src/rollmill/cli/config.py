"""`rollmill config` and `ng_dump_config`: the whole configuration as a command sees it, without its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from rollmill.cli.collect import Asked, add_arguments, asked_for
from rollmill.cli.ng import Ng
from rollmill.cli.say import say
from rollmill.collection.options import CollectOptions
from rollmill.config import Config, Instance, as_yaml, load, masked
from rollmill.instances import with_policy

ABOUT = "Print the whole configuration, resolved, as YAML without its secrets."


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        usage="rollmill config [NAME] [--model MODEL] [options] [+key=value …]",
        help="print the whole configuration, resolved",
        description=f"{ABOUT} Takes what `rollmill collect` takes.",
    )
    add_arguments(parser)
    parser.set_defaults(handler=lambda arguments: _dump(asked_for(arguments)), options=CollectOptions)


class Settings(CollectOptions, frozen=True, kw_only=True):
    """A collection's options where nothing is collected."""

    output_jsonl_fpath: str = ""


class ConfigOptions(Struct, frozen=True):
    """What the help names; any other key is part of the configuration."""

    config_paths: list[str] = []
    """The configuration files, as in `+config_paths=[a.yaml,b.yaml]`."""


def read(asked: Asked, *, models_given: bool) -> Config[Settings]:
    """The configuration that was asked for; what is doubtful in it is said."""
    config = load(asked.words, options=Settings, files=asked.files, initial=asked.layer, models_given=models_given)
    for warning in config.warnings:
        say(warning)
    return config


def _dump(asked: Asked) -> int:
    config = read(asked, models_given=True)
    for line in lines(config, asked.policy):
        print(line)
    return 0


def lines(config: Config[Any], policy: Instance | None) -> Iterator[str]:
    """Which files were read, lowest first, and what they came to."""
    yield from (f"# from {path}" for path in config.sources)
    # What the files say is in here, so that they need not be there when this is loaded.
    own = {key: value for key, value in config.tree.items() if key != "config_paths"}
    instances = {
        name: {one.kind: {one.implementation: dict(one.fields)}} for name, one in with_policy(config, policy).items()
    }
    yield as_yaml(masked(own | instances)).rstrip("\n")


NG_DUMP_CONFIG = Ng(
    about=ABOUT,
    options=ConfigOptions,
    run=lambda words: _dump(Asked(list(words), [], {}, None)),
    more="Any other +key=value is part of the configuration.",
)
