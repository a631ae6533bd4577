"""The same work done by several, in turns: the floor and the command, or the command with more or fewer workers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import measure
import tasks
from measure import MeasurementError, Rate
from msgspec import Struct
from server import Server

HERE = Path(__file__).parent


class Bench(Struct, frozen=True):
    """Where it is measured, and how much of it."""

    server: Server
    folder: Path
    rounds: int
    scale: float
    """What every number of rollouts is multiplied with."""
    rows: int
    """How many rollouts are many."""

    def input(self, kind: tasks.Kind, count: int) -> Path:
        """A new file with that many rows."""
        path = self.folder / f"{kind}.jsonl"
        tasks.write(kind, count, path)
        return path


class Work(Struct, frozen=True):
    """What is to be done: `few` rollouts, and then `many`, so that the cost of starting falls out."""

    kind: tasks.Kind
    script: str
    environment: str
    in_flight: int
    few: int
    many: int
    calls: int = 1
    """How many model calls a rollout takes."""


Contender = Callable[[Work, str, Path, int, Path], list[str]]
"""The command that plays so many rows of an input with the model at a URL: (work, URL, input, rows, output)."""


def floor(client: str) -> Contender:
    def command(work: Work, url: str, source: Path, count: int, out: Path) -> list[str]:
        return [sys.executable, str(HERE / "floor.py"), client, *_common(work, url, source, count, out)]

    return command


def ours(*words: str) -> Contender:
    def command(work: Work, url: str, source: Path, count: int, out: Path) -> list[str]:
        environment = f"{HERE / 'environments.py'}:{work.environment}"
        common = _common(work, url, source, count, out)
        return [str(rollmill()), "collect", environment, "--model", "openai:mock", *common, *words]

    return command


def rollmill() -> Path:
    """The command, of the environment that this runs in."""
    return Path(sys.executable).with_name("rollmill")


def _common(work: Work, url: str, source: Path, count: int, out: Path) -> list[str]:
    given = {"--base-url": url, "--input": source, "--limit": count, "--concurrency": work.in_flight, "--out": out}
    return [str(word) for pair in given.items() for word in pair]


def contest(bench: Bench, work: Work, contenders: dict[str, Contender]) -> dict[str, list[Rate]]:
    """Everybody's rate in every round. They take turns, so that a machine that slows down slows all of them."""
    few = max(work.in_flight, round(bench.scale * work.few))
    many = few + max(work.in_flight, round(bench.scale * (work.many - work.few)))
    source = bench.input(work.kind, many)
    rates: dict[str, list[Rate]] = {name: [] for name in contenders}
    for turn in range(bench.rounds):
        for name, contender in contenders.items():
            costs = [(count, cost(bench, work, contender, source, count)) for count in (few, many)]
            rates[name].append(measure.rate(*costs))
            one = rates[name][-1]
            say(f"  {turn + 1}. {name}: {one.per_s:,.0f} rollouts/s, {one.cpu_ms:.3f} ms of CPU each")
    return rates


def cost(bench: Bench, work: Work, contender: Contender, source: Path, count: int) -> measure.Cost:
    out = bench.folder / "out.jsonl"
    forget(out)
    bench.server.reset()
    cost = measure.run(contender(work, bench.server.url(work.script), source, count, out), bench.folder / "command.log")
    check(bench, out, count, count * work.calls)
    forget(out)
    return cost


def check(bench: Bench, out: Path, lines: int, calls: int) -> None:
    """Raises `MeasurementError` unless the output has so many lines, and the server answered so many calls."""
    found, stats = count_lines(out), bench.server.stats()
    if found != lines:
        raise MeasurementError(f"{out} has {found} lines, and {lines} were asked for")
    if stats.requests != calls or set(stats.by_status) - {"200"}:
        raise MeasurementError(
            f"{lines} rollouts are {calls} model calls, and the server had {stats.by_status or 'none'}"
        )


def count_lines(path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def forget(out: Path) -> None:
    """Remove an output with what lies beside it."""
    shutil.rmtree(out.with_suffix(".run"), ignore_errors=True)
    for path in (out, *out.parent.glob(f"{out.stem}_*")):
        path.unlink(missing_ok=True)


def ratios(above: Sequence[Rate], below: Sequence[Rate], number: Callable[[Rate], float]) -> list[float]:
    """Of one to another, round by round."""
    return [number(one) / number(other) for one, other in zip(above, below, strict=True)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
