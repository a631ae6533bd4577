"""`rollmill serve` and `ng_run`: a configuration's instances as services, until they are stopped."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from rollmill.cli.apart import supervisor_of
from rollmill.cli.collect import add_arguments, asked_for
from rollmill.cli.loop import run_fast
from rollmill.cli.ng import Ng
from rollmill.cli.say import say
from rollmill.cli.services import KINDS
from rollmill.cli.table import table, terminal_width
from rollmill.collection.streams import outlive_readers
from rollmill.config import Config, Instance, load
from rollmill.cores import allow_many_files
from rollmill.errors import ConfigError
from rollmill.instances import with_policy
from rollmill.services.head import Shown
from rollmill.services.options import ServeOptions
from rollmill.services.supervisor import Supervisor

ABOUT = """\
Serve models, environments and agents over HTTP until Ctrl-C: a port for each, and a head server that knows them all."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        usage="rollmill serve [NAME] [--model MODEL] [options] [+key=value …]",
        help="serve models, environments and agents over HTTP",
        description=f"{ABOUT} NAME and the model are given as to `rollmill collect`.",
    )
    add_arguments(parser)
    parser.set_defaults(handler=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    asked = asked_for(arguments)
    layer = {key: value for key, value in asked.layer.items() if key != "agent_name"}
    return _run(asked.words, policy=asked.policy, files=asked.files, initial=layer)


def _run(
    words: Sequence[str],
    *,
    policy: Instance | None = None,
    files: Sequence[str] = (),
    initial: dict[str, Any] | None = None,
) -> int:
    config = load(words, options=ServeOptions, files=files, initial=initial, models_given=policy is not None)
    for warning in config.warnings:
        say(warning)
    instances = with_policy(config, policy)
    if not instances:
        raise ConfigError(
            "nothing to serve: name an environment (rollmill serve mcqa --model …), or give configuration files "
            "(+config_paths=[resources_servers/mcqa/configs/mcqa.yaml,…], or config_paths in env.yaml)"
        )
    allow_many_files()
    outlive_readers()
    return run_fast(serve(config, instances))


async def serve(config: Config[ServeOptions], instances: dict[str, Instance]) -> int:
    options = config.options
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Also where a shell started it in the background and told it to ignore Ctrl-C: whoever sends it means it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor = supervisor_of(config, instances, options)
    starting = asyncio.create_task(supervisor.__aenter__())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        print("Stopped before the services were ready.")
        return 0
    starting.result()
    try:
        if options.dry_run:
            print(f"Dry run: all {len(instances)} instances can be made.")
            return 0
        _show(supervisor, options)
        watching = asyncio.create_task(supervisor.watch())
        await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        watching.cancel()
    finally:
        stopping.cancel()
        await supervisor.__aexit__(None, None, None)
    print(f"Stopped {len(instances)} services.")
    if options.profiling_enabled:
        print(f"Profiles: {options.profiling_results_dirpath}/*/*.log")
    return 0


def _show(supervisor: Supervisor, options: ServeOptions) -> None:
    shown = supervisor.shown()
    for line in table(("name", "kind", "URL", "pid", "state"), rows(shown), terminal_width()):
        print(line)
    ready = sum(one.state not in ("starting", "restarting") for one in shown)
    print(
        f"All {ready} / {len(shown)} servers ready! Head server: {options.head_server.url}. Ctrl-C stops them.",
        flush=True,
    )


def rows(services: Sequence[Shown]) -> list[tuple[str, str, str, str, str]]:
    return [(one.name, KINDS.get(one.server_type, one.server_type), one.url, _pid(one), one.state) for one in services]


def _pid(service: Shown) -> str:
    more = f"+{service.num_workers - 1}" if service.num_workers > 1 else ""
    return f"{service.pid}{more}" if service.pid else "-"


NG_RUN = Ng(about=ABOUT, options=ServeOptions, run=_run)
