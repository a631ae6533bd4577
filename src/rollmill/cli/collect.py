"""`rollmill collect` and `ng_collect_rollouts`: one function behind two spellings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rollmill import plugins
from rollmill.cli.ng import Ng
from rollmill.cli.playing import collected
from rollmill.cli.policy import policy_model
from rollmill.cli.say import say
from rollmill.cli.served import AbsentError, Running, running_services
from rollmill.cli.words import is_override
from rollmill.collection.options import CollectOptions
from rollmill.config import Instance, find_path, load, names_files
from rollmill.errors import ConfigError, suggestion

USAGE = """\
rollmill collect NAME [--model MODEL] [--out FILE] [options] [+key=value …]

NAME is an environment (arithmetic, mcqa, …), or a file of your own as path/to/file.py:Class."""

EXIT_CODES = """\
Exit codes: 0 every slot has its rollout; 1 some slots failed, or the run could not go on; 2 the command is wrong;
130 stopped by Ctrl-C, and 143 by SIGTERM, with slots still owed. A run that follows its input and is stopped when all
rows that have come have their rollouts owes nothing: 0."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "collect",
        usage=USAGE,
        help="play tasks and record verified rollouts",
        description="Play tasks and record verified rollouts. The same command again plays only what is missing.",
        epilog=f"Any key of the configuration can be given as +key=value.\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument("--follow", action="store_true", help="go on reading an input that grows, until told to stop")
    parser.set_defaults(handler=_collect, options=CollectOptions)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to play, and with which model."""
    parser.add_argument("words", nargs="*", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--model", help="embedded, FILE.gguf, openai:NAME, vllm:NAME, azure_openai:NAME, replay:FILE")
    parser.add_argument("--base-url", action="append", metavar="URL", help="where the model is; again for a replica")
    parser.add_argument("--api-key-env", default="OPENAI_API_KEY", metavar="VAR", help="where its key is (%(default)s)")
    for flag, (key, text) in _FLAGS.items():
        parser.add_argument(flag, dest=key, metavar=flag.strip("-").upper(), help=text)
    for flag, (key, kind, text) in _SAMPLING.items():
        parser.add_argument(flag, dest=key, metavar="N", type=kind, help=text)


# Flags that are configuration keys by another name.
_FLAGS = {
    "--input": ("input_jsonl_fpath", "the tasks, one JSON row a line (default: the environment's own)"),
    "--prompt": ("prompt_config", "a YAML file with templates, from which the prompts are made"),
    "--out": ("output_jsonl_fpath", "where the rollouts go, one JSON row a line"),
    "--agent": ("agent_name", "the agent for rows that name none"),
    "--limit": ("limit", "take only the first so many tasks"),
    "--repeats": ("num_repeats", "how often each task is played"),
    "--concurrency": ("num_samples_in_parallel", "how many rollouts run at once"),
    "--seed": ("seed", "the seed of tasks that the environment makes itself"),
}
# Flags that override what every row asks of the model.
_SAMPLING = {
    "--temperature": ("temperature", float, "override the temperature"),
    "--top-p": ("top_p", float, "override top_p"),
    "--max-output-tokens": ("max_output_tokens", int, "override the length of a reply"),
}


def _collect(arguments: argparse.Namespace) -> int:
    asked = asked_for(arguments)
    if "output_jsonl_fpath" not in asked.layer and not any("output_jsonl_fpath=" in word for word in asked.words):
        raise ConfigError("where do the rollouts go? Give --out FILE, for example --out runs/a.jsonl")
    layer = asked.layer | ({"follow": True} if arguments.follow else {})
    return _run(asked.words, policy=asked.policy, files=asked.files, initial=layer)


class Asked(Struct, frozen=True):
    """What the words and flags of a command say."""

    words: list[str]
    files: list[str]
    layer: dict[str, Any]
    policy: Instance | None


def asked_for(arguments: argparse.Namespace) -> Asked:
    names = [word for word in arguments.words if not is_override(word)]
    words = [word for word in arguments.words if is_override(word)]
    if len(names) > 1:
        raise ConfigError(f"one environment at a time: {', '.join(names)}")
    given = vars(arguments)
    layer: dict[str, Any] = {key: given[key] for key, _ in _FLAGS.values() if given[key] is not None}
    sampling = {key: given[key] for key, _, _ in _SAMPLING.values() if given[key] is not None}
    if sampling:
        layer["responses_create_params"] = sampling
    files: list[str] = []
    for name in names:
        files, known = environment_layer(name)
        layer = known | layer
    return Asked(words, files, layer, policy_model(arguments.model, arguments.base_url, arguments.api_key_env))


def environment_layer(name: str) -> tuple[list[str], dict[str, Any]]:
    """The configuration of an environment, and its agent: its file, or instances for a class in a file of Python."""
    if name.partition(":")[0].endswith(".py") or ":" in name:
        kind = plugins.environment(name)
        short = kind.__name__.lower()
        agent = {
            "resources_server": {"type": "resources_servers", "name": short},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        return [], {
            "agent_name": f"{short}_simple_agent",
            short: {"resources_servers": {name: {}}},
            f"{short}_simple_agent": {"responses_api_agents": {"simple_agent": agent}},
        }
    # By the folder that NeMo Gym or this package keeps it in, too.
    name = name.rstrip("/").removeprefix("resources_servers/").removeprefix("environments/")
    folders = ("resources_servers", "environments")
    paths = [f"{folder}/{name}/configs/{name}.yaml" for folder in folders]
    path = next((path for path in paths if find_path(path, working_dir=Path.cwd())), None)
    if path is None:
        known = plugins.environments()
        raise ConfigError(
            f"unknown environment {name!r}{suggestion(name, known)}; known: {', '.join(known)}, "
            "or a file of your own as path/to/file.py:Class"
        )
    return [path], {"agent_name": f"{name}_simple_agent"}


# What both spellings do.


def _run(
    words: Sequence[str],
    *,
    policy: Instance | None,
    files: Sequence[str] = (),
    initial: dict[str, Any] | None = None,
) -> int:
    running, absent = (None, "") if files or policy or names_files(words) else _find_running(words)
    tree = running.tree if running else None
    config = load(words, options=CollectOptions, files=files, initial=initial, models_given=True, running=tree)
    return collected(config, policy, running=running, absent=absent)


def _find_running(words: Sequence[str]) -> tuple[Running | None, str]:
    """The services that play where no configuration is given, or why there are none."""
    try:
        running = running_services(words)
    except AbsentError as error:
        return None, str(error)
    say(f"Playing on the {len(running.addresses)} services of {running.head}")
    return running, ""


NG_COLLECT_ROLLOUTS = Ng(
    about="Play tasks and record verified rollouts. The same command again plays only what is missing.",
    options=CollectOptions,
    run=lambda words: _run(words, policy=None),
    more=EXIT_CODES,
)
