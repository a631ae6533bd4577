"""`rollmill status`: what a collection is doing, from another terminal; and which services run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from rollmill.cli.words import is_override
from rollmill.collection.report import counted
from rollmill.collection.snapshot import Snapshot, read_snapshot
from rollmill.errors import ConfigError
from rollmill.store.folder import run_folder
from rollmill.store.lock import owner
from rollmill.store.reader import NAME as INDEX
from rollmill.store.reader import read_index
from rollmill.store.totals import Totals, read_totals

_EVERY_S = 2.0


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        usage="rollmill status [OUTPUT …] [--watch] [--json] [+head_server.port=…]",
        help="what a collection is doing, or which services run",
    )
    parser.add_argument(
        *("words",),
        nargs="*",
        metavar="OUTPUT",
        help="an output of `rollmill collect`; without one, the services of a head server",
    )
    parser.add_argument("--watch", action="store_true", help=f"again every {_EVERY_S:g} s, until it has ended")
    parser.add_argument("--json", action="store_true", help="for machines: one object a line")
    parser.set_defaults(handler=_status)


class Status(Struct, frozen=True):
    """An output as it is now."""

    output: str
    owner: str | None
    """The process that writes it, if one does."""
    state: str
    rewarded: int
    unverified: int
    failed: int
    """All that the output holds, earlier runs included, as far as it is indexed."""
    run: Snapshot | None
    """What the latest run said of itself last."""


def status_of(output: Path) -> Status:
    """Raises `ConfigError` where nothing was collected."""
    folder = run_folder(output)
    if not folder.is_dir() and not output.exists():
        raise ConfigError(f"{output}: there is no such output")
    writer = owner(folder)
    latest = read_snapshot(folder)
    totals = _totals(folder / INDEX)
    return Status(
        output=str(output),
        owner=writer,
        state=_state(writer, latest),
        rewarded=totals.rewarded,
        unverified=totals.unverified,
        failed=totals.failed,
        run=latest,
    )


def _status(arguments: argparse.Namespace) -> int:
    outputs = [Path(word) for word in arguments.words if not is_override(word)]
    if not outputs:
        # What speaks HTTP takes longer to load than all the rest of this.
        from rollmill.cli import services

        return services.show(arguments.words, json=arguments.json)
    while True:
        found = [status_of(output) for output in outputs]
        if arguments.json:
            sys.stdout.write("".join(f"{msgspec.json.encode(one).decode()}\n" for one in found))
        else:
            # Home, and clear what is below, so that the screen does not flicker.
            again = "\x1b[H\x1b[J" if arguments.watch and sys.stdout.isatty() else ""
            sys.stdout.write(again + "".join(f"{line}\n" for one in found for line in lines(one)))
        sys.stdout.flush()
        if not arguments.watch or all(one.owner is None for one in found):
            return 0
        time.sleep(_EVERY_S)


def lines(status: Status) -> Iterator[str]:
    """As a person reads it, in a narrow terminal too."""
    yield f"{status.output}: {status.state}"
    held = f"  holds     {counted(status.rewarded, 'rewarded rollout')}"
    held += f", {status.unverified:,} not verified" if status.unverified else ""
    yield held + (f", {status.failed:,} failed slots" if status.failed else "")
    run = status.run
    if run is None:
        return
    yield f"  slots     {_of_all(run)}, {run.failed:,} failed in this run"
    yield f"  speed     {run.rollouts_per_s:.1f} rollouts/s, {run.rollouts_per_s_overall:.1f} overall"
    yield f"            {run.tokens_per_s:.0f} tokens/s, {run.tokens_per_s_overall:.0f} overall"
    if status.owner is not None:
        yield from _running(run)
    if run.reward_mean is not None:
        yield f"  reward    {run.reward_mean:.3f}, spread {run.reward_std or 0:.3f}, over {run.rewarded:,} of this run"
    if run.retries:
        yield f"  retried   {', '.join(f'{count:,} {kind}' for kind, count in run.retries.items())}"
    if run.bottleneck:
        yield f"  held up   by {run.bottleneck}"
    for warning in run.warnings:
        yield f"  warning   {warning}"


def _of_all(run: Snapshot) -> str:
    if run.planned is None:
        return f"{run.done:,} so far, and as many as come" if run.follows else f"{run.done:,} of ?"
    return f"{run.done:,} of {run.planned:,}" + (f" ({100 * run.done / run.planned:.1f} %)" if run.planned else "")


def _running(run: Snapshot) -> Iterator[str]:
    eta = "" if run.eta_s is None else f", {span(run.eta_s)} to go"
    yield f"  time      {span(run.elapsed_s)} so far{eta}"
    oldest = run.oldest
    age = f"; the oldest is task {oldest.task_index}, {span(oldest.seconds)} so far" if oldest else ""
    yield f"  running   {run.running:,}{age}"
    limit = "" if run.model_limit is None else f" of {run.model_limit} at most"
    yield f"  calls     {run.model_calls:,} in flight{limit}, {run.waiting_calls:,} waiting"
    if run.waited_s is not None:
        yield f"  waiting   for rows, for {span(run.waited_s)}"
    if run.paused:
        yield f"  paused    {run.paused}"
    if run.workers:
        yield f"  workers   {run.workers}, {100 * run.workers_cpu_share:.0f} % of a core each"
    yield f"  process   {100 * run.cpu_share:.0f} % of a core, {run.memory_mb:.0f} MB, pid {run.pid} on {run.host}"


def _state(writer: str | None, latest: Snapshot | None) -> str:
    if writer is not None:
        follows = ", following its input" if latest is not None and latest.follows else ""
        return f"{latest.state if latest else 'starting'}{follows} ({writer})"
    if latest is None:
        return "not running"
    if latest.state in ("running", "draining"):
        return "its process has died; the same command finishes what is missing"
    return latest.state


def _totals(path: Path) -> Totals:
    reader = read_index(path)
    if reader is None:
        return Totals()
    with reader:
        return read_totals(reader.about("totals"))


def span(seconds: float) -> str:
    """A time as people say it: hours only where there are some."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
