"""`rollmill help` and `ng_help`: every command in both spellings."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from rollmill.cli import main, ng
from rollmill.cli.table import table, terminal_width
from rollmill.config import options_from

ABOUT = "List every command in both spellings, with a line about each."
MORE = "rollmill COMMAND --help and ng_NAME --help say what a command takes; nemo_gym_NAME is the same as ng_NAME."


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("help", help="list every command in both spellings", description=ABOUT)
    parser.set_defaults(handler=lambda _: _help())


class HelpOptions(Struct, frozen=True):
    """There are none."""


def _help() -> int:
    print("\n".join(lines(terminal_width())))
    return 0


def lines(width: int) -> Iterator[str]:
    yield from table(("rollmill …", "in NeMo Gym", "what it does"), list(_rows()), width)
    yield ""
    yield from textwrap.wrap(MORE, width, break_on_hyphens=False)


def _rows() -> Iterator[tuple[str, str, str]]:
    """A command's word, its names in NeMo Gym, and a line about it; those that have no word come last."""
    said = abouts(main.parser_of(main.COMMANDS))
    for word, module in main.COMMANDS.items():
        yield word, ", ".join(f"ng_{name}" for name, place in ng.COMMANDS.items() if place == module), said[word]
    for name, place in ng.COMMANDS.items():
        if place not in main.COMMANDS.values():
            yield "", f"ng_{name}", _sentence(ng.find(name).about)


def abouts(parser: argparse.ArgumentParser) -> dict[str, str]:
    """A line about each command, from the help that argparse prints."""
    known = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {choice.dest: choice.help or "" for choice in known._choices_actions}


def _sentence(text: str) -> str:
    first = text.partition(". ")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def _ng(words: Sequence[str]) -> int:
    options_from(words, HelpOptions)
    return _help()


NG_HELP = ng.Ng(about=ABOUT, options=HelpOptions, run=_ng)
