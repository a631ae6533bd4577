"""`rollmill collect` and `ng_collect_rollouts`: one function behind two spellings."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import rollmill
from rollmill import plugins
from rollmill.cli.help import option_lines
from rollmill.collect.collector import Collector
from rollmill.collect.options import CollectOptions
from rollmill.collect.progress import Progress
from rollmill.collect.run import About, Outcome, run
from rollmill.collect.source import Procedure, RowFile, Source
from rollmill.config import Config, Dataset, Instance, find_path, load, masked, masked_text
from rollmill.errors import ConfigError, suggestion
from rollmill.launch import agent_instance, assemble, environment_instance, identities
from rollmill.store.journal import run_folder
from rollmill.types import AgentRef, Task

PROCEDURE_LIMIT = 100
"""How many tasks are made where an environment makes its own and nobody says how many."""

SOME_FAILED = 1
INTERRUPTED = 130

_OVERRIDE = re.compile(r"[+~]|[A-Za-z_][\w.-]*=")

USAGE = """\
rollmill collect NAME [--model MODEL] [--out FILE] [options] [+key=value …]

NAME is an environment (arithmetic, mcqa, …), or a file of your own as path/to/file.py:Class."""

EXIT_CODES = """\
Exit codes: 0 every slot has its rollout; 1 some slots failed; 2 the command is wrong; 130 stopped by Ctrl-C."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "collect",
        usage=USAGE,
        help="play tasks and record verified rollouts",
        description="Play tasks and record verified rollouts. The same command again plays only what is missing.",
        epilog=f"Any key of the configuration can be given as +key=value.\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--model", help="embedded, FILE.gguf, openai:NAME, vllm:NAME, azure_openai:NAME, replay:FILE")
    parser.add_argument("--base-url", action="append", metavar="URL", help="where the model is; again for a replica")
    parser.add_argument("--api-key-env", default="OPENAI_API_KEY", metavar="VAR", help="where its key is (%(default)s)")
    for flag, (key, text) in _FLAGS.items():
        parser.add_argument(flag, dest=key, metavar=key.rsplit("_", 1)[-1].upper(), help=text)
    parser.set_defaults(handler=_collect)


# Flags that are configuration keys by another name.
_FLAGS = {
    "--input": ("input_jsonl_fpath", "the tasks, one JSON row a line (default: the environment's own)"),
    "--out": ("output_jsonl_fpath", "where the rollouts go, one JSON row a line"),
    "--agent": ("agent_name", "the agent for rows that name none"),
    "--limit": ("limit", "take only the first so many tasks"),
    "--repeats": ("num_repeats", "how often each task is played"),
    "--concurrency": ("num_samples_in_parallel", "how many rollouts run at once"),
    "--seed": ("seed", "the seed of tasks that the environment makes itself"),
    "--temperature": ("responses_create_params.temperature", "override the temperature"),
    "--top-p": ("responses_create_params.top_p", "override top_p"),
    "--max-output-tokens": ("responses_create_params.max_output_tokens", "override the length of a reply"),
}


def ng_collect_rollouts() -> None:
    """The entry point of `ng_collect_rollouts`: `+key=value` words only."""
    from rollmill.cli.main import guarded

    words = sys.argv[1:]
    if {"-h", "--help", "+help=true", "+h=true"} & set(words):
        print("ng_collect_rollouts +key=value …\n", *option_lines(CollectOptions), f"\n{EXIT_CODES}", sep="\n")
        return
    sys.exit(guarded(lambda: _run(words, policy=None)))


def _collect(arguments: argparse.Namespace) -> int:
    names = [word for word in arguments.words if not _OVERRIDE.match(word)]
    words = [word for word in arguments.words if _OVERRIDE.match(word)]
    if len(names) > 1:
        raise ConfigError(f"one environment at a time: {', '.join(names)}")
    # The flags' names are the keys; what a person types after them wins.
    flags = [f"++{key}={getattr(arguments, key)}" for key, _ in _FLAGS.values() if getattr(arguments, key) is not None]
    if not any(word.lstrip("+").startswith("output_jsonl_fpath=") for word in (*flags, *words)):
        raise ConfigError("where do the rollouts go? Give --out FILE, for example --out runs/a.jsonl")
    initial = _environment_layer(names[0]) if names else {}
    policy = _policy(arguments)
    return _run([*initial.pop("words", []), *flags, *words], policy=policy, initial=initial)


def _environment_layer(name: str) -> dict[str, Any]:
    """The configuration of an environment by its name, or of a class in a file."""
    if name.partition(":")[0].endswith(".py") or ":" in name:
        kind = plugins.environment(name)
        short = kind.__name__.lower()
        agent = {
            "resources_server": {"type": "resources_servers", "name": short},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        return {
            short: {"resources_servers": {name: {}}},
            f"{short}_simple_agent": {"responses_api_agents": {"simple_agent": agent}},
        }
    path = f"environments/{name}/configs/{name}.yaml"
    if find_path(path, working_dir=Path.cwd()) is None:
        known = plugins.environments()
        raise ConfigError(
            f"unknown environment {name!r}{suggestion(name, known)}; known: {', '.join(known)}, "
            "or a file of your own as path/to/file.py:Class"
        )
    return {"words": [f"+config_paths=[{path}]"]}


def _policy(arguments: argparse.Namespace) -> Instance | None:
    """The model that the flags name, as an instance of a configuration."""
    if arguments.model is None:
        if arguments.base_url:
            raise ConfigError(
                "--base-url needs --model: openai:NAME for the Responses API, vllm:NAME for chat completions"
            )
        return None
    backend, _, name = arguments.model.partition(":")
    fields: dict[str, Any] = {"model": name} if name else {}
    if arguments.model.endswith(".gguf"):
        backend, fields = "embedded", {"model": arguments.model}
    elif backend == "replay":
        fields = {"path": name}
    elif backend == "scripted":
        fields = {"lines": [name]} if name else {}
    elif backend in ("openai", "azure_openai", "vllm"):
        fields = _remote_fields(backend, name, arguments)
    elif backend != "embedded":
        known = ("embedded", "openai", "vllm", "azure_openai", "replay", "scripted")
        raise ConfigError(f"unknown model {arguments.model!r}{suggestion(backend, known)}; known: {', '.join(known)}")
    return Instance(name="policy_model", kind="responses_api_models", implementation=f"{backend}_model", fields=fields)


def _remote_fields(backend: str, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    if not name:
        raise ConfigError(f"--model {backend} needs the model's name: --model {backend}:NAME")
    urls = arguments.base_url or (["https://api.openai.com/v1"] if backend == "openai" else None)
    if urls is None:
        raise ConfigError(f"--model {backend}:{name} needs --base-url")
    prefix = "" if backend == "vllm" else "openai_"
    key = os.environ.get(arguments.api_key_env, "")
    return {f"{prefix}base_url": urls, f"{prefix}api_key": key, f"{prefix}model": name}


# What both spellings do.


def _run(words: Sequence[str], *, policy: Instance | None, initial: dict[str, Any] | None = None) -> int:
    config = load(words, options=CollectOptions, initial=initial, models_given=True)
    for warning in config.warnings:
        _say(warning)
    _refuse_incomplete(config, policy)
    outcome = _with_fast_loop(_play(config, policy))
    _print(outcome, config.options)
    if outcome.drained:
        return INTERRUPTED
    return SOME_FAILED if outcome.report.failures else 0


async def _play(config: Config[CollectOptions], policy: Instance | None) -> Outcome:
    options = config.options
    source = _source(config)
    survey = source.survey()
    crew = assemble(config, survey.agents, policy=policy, deadlines=options.deadlines)
    about = About(
        agents=identities(config, survey.agents, sampling=options.responses_create_params, policy=policy),
        version=rollmill.__version__,
        command=[masked_text(word, config) for word in sys.argv],
        config=masked(config),
    )
    return await run(source, survey, crew, options, about, say=_say, on_start=_stop_on_signals)


def _source(config: Config[CollectOptions]) -> Source:
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
        return RowFile(_chosen(path, train), route, limit)
    if train is not None:
        _say(f"The dataset {train.name} of {agent.name} is not here: {train.jsonl_fpath}")
    if kind.makes_tasks():
        wanted = limit or PROCEDURE_LIMIT
        _say(f"No input file: {agent.name} makes {wanted} tasks of its own (seed {options.seed})")
        fields = environment_instance(config, agent).fields
        return Procedure(agent.name, lambda: kind.tasks(fields, options.seed), wanted)
    example = datasets.get("example")
    if example is not None and (path := find_path(example.jsonl_fpath, working_dir=Path.cwd())):
        return RowFile(_chosen(path, example), route, limit)
    raise ConfigError(f"{agent.name} has no dataset here: give the tasks with +input_jsonl_fpath=…")


def _chosen(path: Path, dataset: Dataset) -> Path:
    _say(f"No input file: taking the dataset {dataset.name} ({dataset.type}), {path}")
    return path


def _existing(path: str) -> Path:
    found = find_path(path, working_dir=Path.cwd())
    if found is None or not found.is_file():
        raise ConfigError(f"input_jsonl_fpath: there is no file {path}")
    return found


class _Route:
    """Which agent plays a row, and what kind of task its environment reads."""

    def __init__(self, config: Config[CollectOptions]) -> None:
        self._config = config
        self._known: dict[str | None, tuple[str, type[Task]]] = {}

    def __call__(self, ref: AgentRef | None) -> tuple[str, type[Task]]:
        name = ref.name if ref else self._config.options.agent_name
        if name not in self._known:
            agent = agent_instance(self._config, name)
            environment = environment_instance(self._config, agent)
            self._known[name] = agent.name, plugins.environment(environment.implementation).task_type
        return self._known[name]


def _refuse_incomplete(config: Config[CollectOptions], policy: Instance | None) -> None:
    if not config.instances:
        raise ConfigError(
            "nothing to play: name an environment (rollmill collect arithmetic …), or give configuration files "
            "(+config_paths=[resources_servers/mcqa/configs/mcqa.yaml,…], or config_paths in env.yaml)"
        )
    models = [name for name, one in config.instances.items() if one.kind == "responses_api_models"]
    if policy is None and not models:
        raise ConfigError(
            "no model: give --model embedded (on this machine), --model openai:NAME, --model vllm:NAME --base-url URL, "
            "or a configuration such as responses_api_models/openai_model/configs/openai_model.yaml in config_paths"
        )


def _with_fast_loop(coroutine: Any) -> Outcome:
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        outcome: Outcome = runner.run(coroutine)
        return outcome


def _stop_on_signals(collector: Collector, progress: Progress) -> None:
    """Once: let what runs end. Twice: stop now; what ended is recorded, the rest is owed."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def stop() -> None:
        if collector.draining and task is not None:
            task.cancel()
            return
        collector.drain()
        progress.say(f"Stopping: waiting for {collector.running} rollouts that run. Ctrl-C again stops now.")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(outcome: Outcome, options: CollectOptions) -> None:
    report, output = outcome.report, options.output_jsonl_fpath
    if outcome.held == outcome.planned:
        print(
            f"Nothing to do: {output} holds all {outcome.held} rollouts. For more, raise the repeats "
            "(--repeats, +num_repeats) or add tasks."
        )
    if report.rollouts:
        print(msgspec.json.format(msgspec.json.encode(report.means()), indent=2).decode())
        print("\n".join(report.lines()))
    print(f"Rollouts: {output} ({report.rollouts} rows); beside it {run_folder(Path(output))}/")
    if report.failures:
        print(f"Why slots failed: {run_folder(Path(output))}/failures.ndjson; the same command tries them again")
    missing = outcome.planned - outcome.held
    if outcome.drained and missing:
        print(f"Stopped early. The same command plays what is missing:\n  {shlex.join(sys.argv)}")
