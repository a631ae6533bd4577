"""`ng_status`, and `rollmill status` without an output: which services run, and whether they answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from rollmill.cli.ng import Ng
from rollmill.cli.served import AbsentError, Service, services_of
from rollmill.cli.table import table, terminal_width
from rollmill.config import options_from
from rollmill.errors import ConfigError
from rollmill.net.connection import WireError
from rollmill.serve.client import Client

ABOUT = "List the services that a head server knows, and whether each of them answers."
KINDS = {"responses_api_models": "model", "resources_servers": "environment", "responses_api_agents": "agent"}
_ANSWER_S = 2.0


class StatusOptions(Struct, frozen=True):
    """How to say it."""

    json: bool = False
    """Print JSON, for machines."""


class Answered(Struct, frozen=True):
    """A service, and how it answers."""

    name: str
    server_type: str
    url: str
    pid: int | None
    state: str
    healthy: bool
    seconds: float


def show(words: Sequence[str], *, json: bool = False) -> int:
    """Also the exit code: 0 where all of them answer."""
    try:
        found = services_of(words)
    except AbsentError as error:
        raise ConfigError(f"No servers found running: {error}; start them with ng_run or rollmill serve") from None
    answered = asyncio.run(_ask_all(found))
    if json:
        print(msgspec.json.encode(answered).decode())
    else:
        print("\n".join(lines(answered, terminal_width())))
    return 0 if all(one.healthy for one in answered) else 1


async def _ask_all(services: Sequence[Service]) -> list[Answered]:
    return await asyncio.gather(*map(_ask, services))


async def _ask(service: Service) -> Answered:
    began = time.monotonic()
    healthy = False
    try:
        async with asyncio.timeout(_ANSWER_S), Client(service.url, wait_s=0) as client:
            # Whether it wants a token is no matter of its health.
            healthy = (await client.get("/")).status < 500
    except (WireError, TimeoutError):
        pass
    state = service.state if healthy else f"no answer in {_ANSWER_S:g} s"
    spent = round(time.monotonic() - began, 3)
    return Answered(service.name, service.server_type, service.url, service.pid, state, healthy, spent)


def lines(services: Sequence[Answered], width: int) -> Iterator[str]:
    rows = [
        ("✓" if one.healthy else "✗", one.name, KINDS.get(one.server_type, one.server_type), one.url, one.state)
        for one in services
    ]
    yield from table(("", "name", "kind", "URL", "state"), rows, width)
    healthy = sum(one.healthy for one in services)
    yield f"{len(services)} servers found ({healthy} healthy, {len(services) - healthy} unhealthy)"


def _ng(words: Sequence[str]) -> int:
    return show(words, json=options_from(words, StatusOptions).json)


NG_STATUS = Ng(
    about=ABOUT,
    options=StatusOptions,
    run=_ng,
    more="+head_server.host=… and +head_server.port=… name another head server than 127.0.0.1:11000.",
)
