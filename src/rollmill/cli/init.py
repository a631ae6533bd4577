"""`rollmill init environment` and `ng_init_resources_server`: a folder to begin an environment with."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import fields

from rollmill.cli.ng import Ng
from rollmill.collection.options import CollectOptions
from rollmill.config import RESERVED, options_from
from rollmill.errors import ConfigError

ABOUT = "Make a folder with an environment that works: a tool, a reward, five tasks, a configuration and tests."

PARENT = "resources_servers"
STARTER = Path(__file__).parent / "starter"
"""An environment like any other, which is given the name that was asked for."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("init", help="make a folder to begin an environment with")
    kinds = parser.add_subparsers(title="what", metavar="WHAT", required=True)
    environment = kinds.add_parser("environment", help="an environment, in resources_servers/NEW", description=ABOUT)
    environment.add_argument("name", metavar="NEW", help="its name, which a Python class could have")
    environment.set_defaults(handler=_from_flags)


class InitOptions(Struct, frozen=True, kw_only=True):
    """What to make."""

    entrypoint: Annotated[str, Meta(min_length=1)]
    """The folder, as resources_servers/NAME; it is made beside the working directory and must not be there yet."""


def _from_flags(arguments: argparse.Namespace) -> int:
    return _init(arguments.name)


def _ng(words: Sequence[str]) -> int:
    entrypoint = options_from(words, InitOptions).entrypoint
    parts = Path(entrypoint).parts
    if len(parts) != 2 or parts[0] != PARENT:
        raise ConfigError(f'entrypoint: expected {PARENT}/NAME, got "{entrypoint}"')
    return _init(parts[1])


def _init(name: str) -> int:
    _refuse_name(name)
    folder = Path(PARENT, name)
    if folder.exists():
        raise ConfigError(f"{folder} is there already; choose another name")
    try:
        for path, text in written(name):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
            print(folder / path)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}") from None
    print("\nIt works as it is:")
    print(f"  rollmill test {name}")
    print(f"  rollmill collect {name} --model embedded --out {name}.jsonl")
    return 0


def _refuse_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f'"{name}" is no name for code: it begins with a letter, and has letters, digits and _ only')
    if name in RESERVED or name in {field.encode_name for field in fields(CollectOptions)}:
        raise ConfigError(f'"{name}" is a key of every configuration; an environment needs another name')


def written(name: str) -> Iterator[tuple[Path, str]]:
    """The files of an environment of that name."""
    words = {"starter": name, "Starter": "".join(part[:1].upper() + part[1:] for part in name.split("_"))}
    for file in sorted(STARTER.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            path = str(file.relative_to(STARTER)).replace("starter", name)
            yield Path(path), re.sub("[sS]tarter", lambda found: words[found[0]], file.read_text("utf-8"))


NG_INIT_RESOURCES_SERVER = Ng(about=ABOUT, options=InitOptions, run=_ng)
