"""`rollmill`: one word, then a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import rollmill
from rollmill.cli import aggregate, collect, estimate, merge, models, reward_profile, show, status
from rollmill.cli.guard import guarded


def main() -> None:
    """The entry point of `rollmill`."""
    sys.exit(guarded(lambda: run(sys.argv[1:])))


def run(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="rollmill", description=rollmill.__doc__)
    parser.add_argument("--version", action="version", version=f"rollmill {rollmill.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (collect, estimate, status, merge, aggregate, reward_profile, show, models):
        command.add_parser(commands)
    arguments, extra = parser.parse_known_args(words)
    _take_words(parser, arguments, extra)
    handler: Callable[[argparse.Namespace], int] = arguments.handler
    return handler(arguments)


def _take_words(parser: argparse.ArgumentParser, arguments: argparse.Namespace, extra: Sequence[str]) -> None:
    """Words may stand anywhere among the flags, which argparse alone does not allow; unknown flags are still wrong."""
    flags = [word for word in extra if word.startswith("-")]
    if flags or (extra and not hasattr(arguments, "words")):
        parser.error(f"unknown argument {(flags or extra)[0]}; see rollmill COMMAND --help")
    if extra:
        arguments.words += extra
