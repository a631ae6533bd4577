"""The same work by services that run: what they and the command take together, and what they take to be ready."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import measure
from contest import Bench, Work, check, cost, floor, forget, ratios, rollmill, say
from measure import Cost, MeasurementError, Rate
from msgspec import Struct
from report import Bar, Section, spread

HERE = Path(__file__).parent
_TICKS = os.sysconf("SC_CLK_TCK")
_READY_S = 60.0


class Services:
    """Three services that answer: a model's, an environment's, an agent's."""

    def __init__(self, process: subprocess.Popen[str], ready_s: float, port: int) -> None:
        self.process, self.ready_s, self.port = process, ready_s, port

    @property
    def pids(self) -> list[int]:
        return [self.process.pid, *measure.descendants(self.process.pid)]

    def cpu_s(self) -> float:
        return sum(_cpu_s(pid) for pid in self.pids)

    def memory_mb(self) -> float:
        return sum(measure.memory_of(pid)[0] for pid in self.pids)


class Measured(Struct):
    floor: list[Rate] = []
    served: list[Rate] = []
    ready_s: list[float] = []
    fresh_mb: list[float] = []
    used_mb: list[float] = []


def services(bench: Bench) -> Section:
    work = Work("tools", "tools4.get_synonym_value-0", "Synonyms", 128, few=600, many=4_600, calls=5)
    few, many = (max(work.in_flight, round(bench.scale * count)) for count in (work.few, work.many))
    if many <= few:
        many = 2 * few
    source = bench.input(work.kind, many)
    found = Measured()
    for turn in range(bench.rounds):
        costs = [(count, cost(bench, work, floor("aiohttp"), source, count)) for count in (few, many)]
        found.floor.append(measure.rate(*costs))
        with _running(bench, work) as running:
            found.ready_s.append(running.ready_s)
            found.fresh_mb.append(running.memory_mb())
            served = [(count, _served(bench, work, running, source, count)) for count in (few, many)]
            found.used_mb.append(running.memory_mb())
        found.served.append(measure.rate(*served))
        say(f"  {turn + 1}. {found.served[-1].per_s:,.0f} rollouts/s, {found.served[-1].cpu_ms:.3f} ms of CPU each")
    return Section(
        "services",
        "`ng_run` and `ng_collect_rollouts`, five model calls a rollout, four of which call a tool, 11 kB in and "
        "growing, answered at once, 128 in flight. CPU is that of the command and of all services together.",
        [
            Bar("CPU a rollout against the floor's", ratios(found.served, found.floor, lambda one: one.cpu_ms), 5),
            Bar("three services ready after", found.ready_s, 2, unit=" s"),
            Bar("memory of all their processes, fresh", found.fresh_mb, 200, unit=" MB"),
        ],
        ["", "rollouts/s", "CPU ms a rollout", "memory after it, MB"],
        [
            _row("floor", found.floor, "-"),
            _row("ng_run and ng_collect_rollouts", found.served, f"{statistics.median(found.used_mb):.0f}"),
        ],
    )


def _row(name: str, rates: list[Rate], memory: str) -> list[str]:
    return [name, spread([rate.per_s for rate in rates]), spread([rate.cpu_ms for rate in rates]), memory]


@contextmanager
def _running(bench: Bench, work: Work) -> Iterator[Services]:
    port = _free_port()
    environment = f"{HERE / 'environments.py'}:{work.environment}"
    url = bench.server.url(work.script)
    words = ("serve", environment, "--model", "openai:mock", "--base-url", url, f"+head_server.port={port}")
    began = time.perf_counter()
    process = subprocess.Popen([str(rollmill()), *words], stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "servers ready" in line:
                break
        else:
            raise MeasurementError("the services did not become ready")
        yield Services(process, time.perf_counter() - began, port)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(_READY_S)


def _served(bench: Bench, work: Work, running: Services, source: Path, count: int) -> Cost:
    out = bench.folder / "out.jsonl"
    forget(out)
    bench.server.reset()
    before = running.cpu_s()
    words = [
        rollmill().with_name("ng_collect_rollouts"),
        f"+head_server.port={running.port}",
        f"+agent_name={work.environment.lower()}_simple_agent",
        f"+input_jsonl_fpath={source}",
        f"+output_jsonl_fpath={out}",
        f"+limit={count}",
        f"+num_samples_in_parallel={work.in_flight}",
    ]
    taken = measure.run(words, bench.folder / "command.log")
    check(bench, out, count, count * work.calls)
    forget(out)
    return Cost(taken.wall_s, taken.cpu_s + running.cpu_s() - before, taken.began)


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
