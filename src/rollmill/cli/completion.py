"""`rollmill completion`: what a shell needs to complete the commands, printed once.

All that can be completed is in what is printed, so that no process starts while somebody types.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from rollmill import plugins
from rollmill.cli import main, ng
from rollmill.cli.help import described

ENVIRONMENT = "NAME"
"""How commands call an argument that is an environment."""

DESCRIPTION = """\
Print what your shell needs to complete rollmill and the commands of NeMo Gym:

  bash   rollmill completion bash >~/.rollmill.bash, and in ~/.bashrc: . ~/.rollmill.bash
  zsh    rollmill completion zsh >~/.rollmill.zsh, and in ~/.zshrc: . ~/.rollmill.zsh
  fish   rollmill completion fish >~/.config/fish/conf.d/rollmill.fish

Print it again after an update."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="print what a shell needs to complete the commands",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(handler=_completion)


class Offer(Struct, frozen=True):
    """What can stand in one place, each word with what it is."""

    words: dict[str, str]
    environments: bool = False


def _completion(arguments: argparse.Namespace) -> int:
    print(SHELLS[arguments.shell](offers()))
    return 0


def offers() -> dict[str, Offer]:
    """What is offered after a command, by its words, and after a flag with a value as `WORDS:FLAG`."""
    found = dict(_of_parser("", main.parser_of(main.COMMANDS)))
    for name in ng.COMMANDS:
        keys = _keys(ng.find(name).options) | {"+config_paths=": "configuration files", "+help=true": "what it takes"}
        found |= {f"{prefix}{name}": Offer(keys) for prefix in ng.PREFIXES}
    return found


def _of_parser(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, Offer]]:
    offered: dict[str, str] = {}
    environments = False
    for action in parser._actions:
        about = _about(parser, action)
        if isinstance(action, argparse._SubParsersAction):
            offered |= {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, inner in action.choices.items():
                yield from _of_parser(f"{words} {word}".strip(), inner)
        elif action.option_strings:
            flag = action.option_strings[-1]
            offered[flag] = about
            if action.nargs != 0:
                yield f"{words}:{flag}", Offer(dict.fromkeys(map(str, action.choices or ()), ""))
        else:
            offered |= dict.fromkeys(map(str, action.choices or ()), about)
            environments = environments or action.metavar == ENVIRONMENT
    options = parser.get_default("options")
    yield words, Offer(offered | (_keys(options) if options else {}), environments)


def _about(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if action.help in (None, argparse.SUPPRESS):
        return ""
    return parser._get_formatter()._expand_help(action)


def _keys(options: type[Struct]) -> dict[str, str]:
    sentences = described(options)
    return {f"+{field.encode_name}=": sentences[field.name] for field in msgspec.structs.fields(options)}


# What is printed.


def _bash(offers: dict[str, Offer]) -> str:
    return "\n".join((*_table(offers), _part("common.sh"), _part("bash.sh", offers)))


def _zsh(offers: dict[str, Offer]) -> str:
    return "\n".join((f"#compdef {_names(offers)}\n", *_table(offers), _part("common.sh"), _part("zsh.sh", offers)))


def _fish(offers: dict[str, Offer]) -> str:
    cases = (
        "\n            ".join((f"        case {' '.join(map(_fish_quoted, places))}", *lines))
        for lines, places in _cases(offers, "__rollmill_own", _fish_quoted)
    )
    table = ("function __rollmill_table", "    switch $argv[1]", *cases, "        case '*'", "            return 1")
    return "\n".join((*table, "    end", "end\n", _part("fish.fish", offers)))


SHELLS: dict[str, Callable[[dict[str, Offer]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _table(offers: dict[str, Offer]) -> Iterator[str]:
    """The offers as a function of bash and zsh."""
    yield "_rollmill_table() {\n    case $1 in"
    for lines, places in _cases(offers, "_rollmill_own", shlex.quote):
        yield "\n        ".join((f"    {' | '.join(map(shlex.quote, places))})", *lines, ";;"))
    yield "    *) return 1 ;;\n    esac\n}\n"


def _cases(
    offers: dict[str, Offer], own: str, quoted: Callable[[str], str]
) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    """What to print, and all the places in which it is that."""
    cases: dict[tuple[str, ...], list[str]] = {}
    for place, offer in offers.items():
        cases.setdefault(tuple(_lines(offer, own, quoted)), []).append(place)
    return cases.items()


def _lines(offer: Offer, own: str, quoted: Callable[[str], str]) -> Iterator[str]:
    words = offer.words | (dict.fromkeys(plugins.environments(), "environment") if offer.environments else {})
    if words:
        yield f"printf '%s\\n' {' '.join(quoted(_line(*word)) for word in words.items())}"
    if offer.environments:
        yield own
    # A flag may take a value of which nothing is known.
    yield "true"


def _line(word: str, about: str) -> str:
    sentence = " ".join(about.split()).partition(". ")[0].rstrip(".")
    return f"{word}\t{sentence}" if sentence else word


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _part(name: str, offers: dict[str, Offer] | None = None) -> str:
    text = resources.files("rollmill.cli").joinpath("shells", name).read_text("utf-8")
    return text.replace("@NAMES@", _names(offers or {}))


def _names(offers: Iterable[str]) -> str:
    return " ".join(("rollmill", *(place for place in offers if place.startswith(ng.PREFIXES))))
