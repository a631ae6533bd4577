"""NeMo Gym's commands by their own names, `ng_NAME` and `nemo_gym_NAME`: `+key=value` words only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from rollmill.cli.guard import guarded
from rollmill.cli.help import option_lines

COMMANDS = {
    "run": "serve",
    "aggregate_rollouts": "aggregate",
    "collect_rollouts": "collect",
    "e2e_collect_rollouts": "e2e",
    "materialize_prompts": "render",
    "prepare_data": "prepare",
    "download_dataset_from_hf": "download",
    "upload_dataset_to_hf": "upload",
    "reward_profile": "reward_profile",
    "init_resources_server": "init",
    "test": "test",
    "test_all": "test",
    "dump_config": "config",
    "validate": "validate",
    "status": "services",
    "version": "version",
    "help": "overview",
}
"""Where each command is: a module of this package, which has it as `NG_<NAME>`."""

PREFIXES = ("nemo_gym_", "ng_")
_HELP = {"-h", "--help", "+help=true", "+h=true"}


class Ng(Struct, frozen=True):
    """A command as NeMo Gym calls it."""

    about: str
    options: type[Struct]
    run: Callable[[Sequence[str]], int]
    """Gets the words of the command line; what the caller did wrong is raised as `CallerError`."""
    more: str = ""
    """What the help says at its end."""


def main() -> None:
    """The entry point of them all: the name by which it was called says which is meant."""
    called = Path(sys.argv[0]).name
    words = sys.argv[1:]
    sys.exit(guarded(lambda: _run(called, words)))


def _run(called: str, words: Sequence[str]) -> int:
    command = find(_stem(called))
    if not _HELP & set(words):
        return command.run(words)
    print(help_text(called, command), flush=True)
    return 0


def find(name: str) -> Ng:
    module = importlib.import_module(f"rollmill.cli.{COMMANDS[name]}")
    command: Ng = getattr(module, f"NG_{name.upper()}")
    return command


def help_text(called: str, command: Ng) -> str:
    more = f"\n{command.more}" if command.more else ""
    return "\n".join((f"{called} +key=value …\n", f"{command.about}\n", *option_lines(command.options))) + more


def _stem(called: str) -> str:
    name = called.removesuffix(".exe")
    return next(name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix))
