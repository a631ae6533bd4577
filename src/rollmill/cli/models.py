"""`rollmill models`: the files of embedded models."""

from __future__ import annotations

import argparse
from typing import Any

from rollmill.models import weights


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("models", help="get and list the files of embedded models")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    pull = actions.add_parser("pull", help="get a model's file, once")
    pull.add_argument("name", nargs="?", default=weights.DEFAULT, help="a name from the list, or ORG/REPO:FILE.gguf")
    pull.set_defaults(handler=_pull)
    actions.add_parser("list", help="what is known and what is here").set_defaults(handler=_list)


def _pull(arguments: argparse.Namespace) -> int:
    print(weights.pull(arguments.name))
    return 0


def _list(_: argparse.Namespace) -> int:
    for name, state, path in weights.listed():
        print(f"{name:32} {state:16} {path}")
    return 0
