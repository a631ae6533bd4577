"""`rollmill`: one word, then a command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence

import rollmill
from rollmill.cli.guard import guarded

COMMANDS = {
    "collect": "collect",
    "serve": "serve",
    "e2e": "e2e",
    "estimate": "estimate",
    "status": "status",
    "merge": "merge",
    "aggregate": "aggregate",
    "reward-profile": "reward_profile",
    "render": "render",
    "prepare": "prepare",
    "download": "download",
    "upload": "upload",
    "show": "show",
    "models": "models",
    "list": "listing",
    "init": "init",
    "test": "test",
    "config": "config",
    "validate": "validate",
    "version": "version",
    "help": "overview",
    "completion": "completion",
}
"""Where each command is: a module of this package, which has `add_parser`."""


def main() -> None:
    """The entry point of `rollmill`."""
    sys.exit(guarded(lambda: run(sys.argv[1:])))


def run(words: Sequence[str]) -> int:
    # A command that is known imports nothing of the others.
    parser = parser_of(words[:1] if words and words[0] in COMMANDS else COMMANDS)
    arguments, extra = parser.parse_known_args(words)
    _take_words(parser, arguments, extra)
    handler: Callable[[argparse.Namespace], int] = arguments.handler
    return handler(arguments)


def parser_of(commands: Iterable[str]) -> argparse.ArgumentParser:
    """A parser that knows these commands."""
    parser = argparse.ArgumentParser(prog="rollmill", description=rollmill.__doc__)
    parser.add_argument("--version", action="version", version=f"rollmill {rollmill.__version__}")
    known = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        importlib.import_module(f"rollmill.cli.{COMMANDS[command]}").add_parser(known)
    return parser


def _take_words(parser: argparse.ArgumentParser, arguments: argparse.Namespace, extra: Sequence[str]) -> None:
    """Words may stand anywhere among the flags, which argparse alone does not allow; unknown flags are still wrong."""
    flags = [word for word in extra if word.startswith("-")]
    if flags or (extra and not hasattr(arguments, "words")):
        parser.error(f"unknown argument {(flags or extra)[0]}; see rollmill COMMAND --help")
    if extra:
        arguments.words += extra
