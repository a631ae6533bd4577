"""`rollmill list`: the environments, models and agents that are here, a line each."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from rollmill.cli import catalog
from rollmill.cli.catalog import Listed, ListedAgent, ListedEnvironment, ListedModel
from rollmill.cli.table import table, terminal_width
from rollmill.config import DOMAINS
from rollmill.errors import ConfigError

KINDS: dict[str, Callable[[], Iterable[Listed]]] = {
    "environments": catalog.environments,
    "agents": catalog.agents,
    "models": catalog.models,
}
ALGORITHMS = {
    "grpo": "grpo compares the rollouts of one task by their rewards: collect with --repeats 8 or so.",
    "ppo": "ppo learns from the reward of each rollout: repeats are not needed.",
    "dpo": "dpo learns from a better and a worse rollout of one task: collect with --repeats 2 or more.",
    "sft": "sft learns from good rollouts alone: keep those with the best rewards.",
}
"""For what rollouts are collected, and how."""

DESCRIPTION = """\
List the environments, agents and models of this package and of the folders beside the working directory."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("list", help="list environments, agents and models", description=DESCRIPTION)
    parser.add_argument("what", nargs="?", choices=KINDS, help="one of the three lists (default: all)")
    parser.add_argument("--domain", choices=DOMAINS, help="only environments that train this")
    parser.add_argument("--for", dest="algorithm", choices=ALGORITHMS, help="only environments that suit it, and how")
    parser.add_argument("--json", action="store_true", help="for machines: one object a line")
    parser.set_defaults(handler=_list)


def _list(arguments: argparse.Namespace) -> int:
    chooses = arguments.domain or arguments.algorithm
    if chooses and arguments.what not in (None, "environments"):
        raise ConfigError(f"--domain and --for choose environments, not {arguments.what}")
    found = {kind: list(KINDS[kind]()) for kind in _asked(arguments.what, bool(chooses))}
    if "environments" in found:
        found["environments"] = [one for one in found["environments"] if _suits(one, arguments)]
    if arguments.json:
        for one in (one for ones in found.values() for one in ones):
            print(msgspec.json.encode(one).decode())
    else:
        print("\n".join(lines(found, arguments.algorithm, terminal_width())))
    return 0


def _asked(what: str | None, chooses: bool) -> Iterable[str]:
    if what is None:
        return ["environments"] if chooses else KINDS
    return [what]


def _suits(one: Listed, arguments: argparse.Namespace) -> bool:
    """All four algorithms learn from rewards; more than whether there are some, no class declares."""
    assert isinstance(one, ListedEnvironment)
    domain = arguments.domain is None or one.trains == arguments.domain
    # A program rewards by its contract.
    rewards = arguments.algorithm is None or one.program or bool(one.rewards)
    return domain and rewards


def lines(found: dict[str, list[Listed]], algorithm: str | None, width: int) -> Iterator[str]:
    """The lists as a person reads them, each with a line between it and the one before."""
    for number, (kind, ones) in enumerate(found.items()):
        if number:
            yield ""
        if ones:
            yield from table(_HEADERS[kind], [_row(one) for one in ones], width)
        else:
            yield f"no {kind} like that here"
        for one in ones:
            if one.fault:
                yield from textwrap.wrap(f"{one.name} cannot be used: {one.fault}", width, subsequent_indent="  ")
    if algorithm:
        yield from textwrap.wrap(ALGORITHMS[algorithm], width)


_HEADERS = {
    "environments": ("environment", "trains", "state", "tools", "verification", "tasks here"),
    "agents": ("agent", "what it is"),
    "models": ("model", "what it is"),
}


def _row(one: Listed) -> tuple[str, ...]:
    match one:
        case ListedEnvironment():
            state = {True: "yes", False: "no", None: "?"}[one.stateful]
            tools = "?" if one.tools is None else str(len(one.tools))
            return one.name, one.trains or "?", state, tools, one.verification or _instead(one), _tasks(one)
        case ListedModel() | ListedAgent():
            # Up to where the sentence goes into details.
            return one.name, re.split(r"[:;.](?:\s|$)", one.about)[0] or _instead(one)
    raise TypeError(one)


def _instead(one: Listed) -> str:
    if one.program:
        return "program"
    return "broken" if one.fault else "your own"


def _tasks(one: ListedEnvironment) -> str:
    if one.makes_tasks:
        return f"{one.examples}, makes more" if one.examples else "makes its own"
    return str(one.examples)
