"""The modern spelling of a command: its options as flags of `rollmill WORD`, with `+key=value` words among them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from rollmill.cli.help import described
from rollmill.cli.words import is_override
from rollmill.errors import ConfigError


class Spelled(Struct, frozen=True):
    """What somebody wrote."""

    names: list[str]
    words: list[str]
    layer: dict[str, Any]
    """The options that flags gave, by key; they lie under the words."""

    def named(self, key: str) -> dict[str, Any]:
        """The options, with the one name that was given as this one."""
        if len(self.names) > 1:
            raise ConfigError(f"one at a time: {', '.join(self.names)}")
        return self.layer | ({key: self.names[0]} if self.names else {})


def add_options(
    parser: argparse.ArgumentParser, options: type[Struct], flags: Mapping[str, str], *, names: str, about: str
) -> None:
    """`flags` says which key of the options each is; `names` are the words that need no flag."""
    parser.usage = f"%(prog)s {names} [options] [+key=value …]"
    parser.add_argument("words", nargs="*", metavar=names, help=about)
    sentences = described(options)
    switches = {field.name for field in msgspec.structs.fields(options) if field.type is bool}
    for flag, key in flags.items():
        how = {"action": "store_const", "const": True} if key in switches else {"metavar": flag.strip("-").upper()}
        parser.add_argument(flag, dest=key, help=sentences[key].replace("%", "%%"), **how)
    parser.set_defaults(flags=tuple(flags.values()))


def spelled(arguments: argparse.Namespace) -> Spelled:
    given = vars(arguments)
    names = [word for word in arguments.words if not is_override(word)]
    words = [word for word in arguments.words if is_override(word)]
    return Spelled(names, words, {key: given[key] for key in arguments.flags if given[key] is not None})
