"""A million rollouts, killed three times on the way."""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from bench.measure import MB, MemoryWatch
from bench.server import Server
from msgspec import Struct
from tests.conftest import ROOT
from tests.crash.chaos.trial import Outcome, Outcomes, Place, Trial, say
from tests.crash.command import Collect, Ended, Running, acknowledged
from tests.crash.rows import identity, write_rows

ASSERTED = """\
1,000,000 short tasks, 128 at once, against the benchmark's model server, which answers at once; the command is killed
with `kill -9` at three points that are drawn, and gone on with. In one pass over the output with a bit for each task,
which reads no index: every task is there once, is the task that its row says, and has its reward (I1, I3, I9); what
had been in the file at each kill is there byte by byte, and what was shown as done was in it (I2); the model was
asked no more often than tasks were in flight at the kills (I4); the index counts the same. Memory of the longest
life, after its first 50,000 rollouts, grows by less than 1 MB for each 100,000 (I6). The command given once more
finds nothing to do."""
PART = "soak"
TASKS = 1_000_000
KILLS = 3
CONCURRENCY = 128
UNIT = 100_000
WARM = 50_000
MOST_GROWTH_MB = 1.0
LONGEST_S = 1800.0
_LOOK_EVERY_S = 0.25


class Kept(Struct, frozen=True):
    """What was in the output when it was killed."""

    size: int
    digest: str


class Life:
    """From a start of the command to its kill, or its end."""

    def __init__(self, collect: Collect, server: Server, until: int) -> None:
        """Killed when the model has been asked so often; 0 lets it end."""
        self._collect, self._server, self._until = collect, server, until
        self.lags: list[float] = []
        server.reset()
        self.memory = MemoryWatch(lambda: self._server.stats().requests / UNIT)
        began = time.time()
        self.running = collect.start()
        with self.memory.of(self.running.pid):
            self._live()
        self.ended = self.running.wait()
        stats = server.stats()
        self.asked = stats.requests
        self.recovery_s = stats.first_request - began if stats.first_request else None

    def _live(self) -> None:
        end = time.monotonic() + LONGEST_S
        status = self._collect.run_folder / "status.json"
        while self.running.process.poll() is None:
            assert time.monotonic() < end, f"I5: not done in {LONGEST_S:g} s"
            if self._until and self._server.stats().requests >= self._until:
                self.running.process.kill()
                return
            self._look(status)
            time.sleep(_LOOK_EVERY_S)

    def _look(self, status: Path) -> None:
        if status.exists():
            said = json.loads(status.read_bytes())
            if said["pid"] == self.running.pid:
                self.lags.append(said["loop_lag_ms"])


def soak(trial: Trial) -> tuple[Outcomes, list[str]]:
    tasks = trial.count(TASKS, least=20_000)
    notes: list[str] = []

    def attempt(place: Place) -> Outcome:
        with Server(place.folder) as server:
            outcome, told = soaked(place, server, tasks)
        notes.extend(told)
        return outcome

    return trial.play(PART, {f"{tasks} tasks": attempt}, lanes=1), notes


def soaked(place: Place, server: Server, tasks: int) -> tuple[Outcome, list[str]]:
    write_rows(place.folder / "rows.jsonl", map(row, range(tasks)))
    collect = Collect(
        *(place.folder, server.url("single-0")),
        environment=f"{ROOT / 'bench' / 'environments.py'}:Boxed",
        concurrency=CONCURRENCY,
    )
    points = sorted(place.chance.sample(range(tasks // 50, tasks - tasks // 50), KILLS))
    say(f"{PART}: killed after {', '.join(f'{point:,}' for point in points)} of {tasks:,} rollouts")
    lives: list[Life] = []
    kept: list[Kept] = []
    for first, last in itertools.pairwise([0, *points, 0]):
        lives.append(Life(collect, server, max(1, last - first) if last else 0))
        if last:
            assert lives[-1].ended.code == -9, lives[-1].ended
            kept.append(held_at_kill(collect, lives[-1].running))
            say(f"{PART}: killed with {kept[-1].size / MB:,.0f} MB written")
    assert lives[-1].ended.code == 0, lives[-1].ended
    read_s = time.monotonic()
    check_all(collect.output, tasks, kept)
    check_index(collect.run_folder / "index.sqlite", tasks)
    read_s = time.monotonic() - read_s
    rework = sum(life.asked for life in lives) - tasks
    assert rework <= KILLS * CONCURRENCY, f"I4: {rework} rollouts were played again"
    longest = max(lives, key=lambda life: life.asked)
    growth = growth_mb(longest.memory, longest.asked)
    # A short life, at a small scale, is all caches that fill.
    assert growth < MOST_GROWTH_MB or longest.asked < 3 * WARM, f"I6: {growth:.2f} MB for each {UNIT:,} rollouts"
    again = _again(collect, server)
    lags = sorted(lag for life in lives for lag in life.lags)
    recovery = max(life.recovery_s or 0.0 for life in lives[1:])
    return Outcome(rework, recovery), [
        f"{tasks:,} rollouts, {KILLS} kills, {collect.output.stat().st_size / MB:,.0f} MB, checked in {read_s:.0f} s",
        f"peak {max(life.memory.peak_mb for life in lives):.0f} MB",
        f"{growth:+.2f} MB for each {UNIT:,}",
        f"longest lag of the loop in any 30 s {lags[len(lags) // 2]:.0f} ms (median), {lags[-1]:.0f} ms (worst)",
        f"the finished output once more {again:.1f} s",
    ]


def row(number: int) -> dict[str, Any]:
    asked = {"input": [{"role": "user", "content": f"Question {number}: A or B?"}]}
    return {"responses_create_params": asked, "expected_answer": "B", "number": number}


def growth_mb(memory: MemoryWatch, asked: int) -> float:
    """Megabytes for each `UNIT`, after the caches have filled, and before what is done once at the end."""
    return memory.slope(min(WARM, asked / 4) / UNIT, 0.98 * asked / UNIT)


def held_at_kill(collect: Collect, running: Running) -> Kept:
    """The whole lines that are there, which are at least what was shown as done."""
    whole, lines = hashlib.blake2b(), 0
    size = 0
    for line in _whole_lines(collect.output):
        whole.update(line)
        lines += 1
        size += len(line)
    said = acknowledged(running.said)
    assert said <= lines, f"I2: {said} were shown as done, and {lines} are there"
    return Kept(size, whole.hexdigest())


def _whole_lines(output: Path) -> Iterator[bytes]:
    with output.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


class _Slot(Struct):
    task: str
    occurrence: int
    repeat: int


class _About(Struct):
    slot: _Slot


class _Row(Struct):
    number: int
    reward: float
    rollmill: _About


def check_all(output: Path, tasks: int, kept: list[Kept]) -> None:
    """I1, I2, I3, I9 in one pass, in memory that is a bit for each task."""
    decode = msgspec.json.Decoder(_Row).decode
    seen = bytearray(-(-tasks // 8))
    digest, size, waiting = hashlib.blake2b(), 0, list(kept)
    with output.open("rb") as file:
        for line in file:
            assert line.endswith(b"\n"), "I3: the last line has no break"
            _check_row(decode(line), tasks, seen)
            digest.update(line)
            size += len(line)
            while waiting and size >= waiting[0].size:
                was = waiting.pop(0)
                assert (size, digest.hexdigest()) == (was.size, was.digest), "I2: what was there at a kill has changed"
    assert not waiting, "I2: the file is shorter than at a kill"
    there = sum(byte.bit_count() for byte in seen)
    assert there == tasks, f"I1: {tasks - there} tasks are missing"


def _check_row(found: _Row, tasks: int, seen: bytearray) -> None:
    number, slot = found.number, found.rollmill.slot
    assert 0 <= number < tasks, f"I1: nobody asked for task {number}"
    assert not seen[number >> 3] & 1 << (number & 7), f"I1: task {number} is there twice"
    seen[number >> 3] |= 1 << (number & 7)
    assert (slot.task, slot.occurrence, slot.repeat) == (identity(row(number)), 0, 0), f"I9: {number} is of {slot}"
    assert found.reward == 1.0, f"I9: task {number} earned {found.reward}"


def check_index(path: Path, tasks: int) -> None:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as index:
        counts = index.execute("SELECT count(*), count(DISTINCT task) FROM rollout").fetchone()
    assert counts == (tasks, tasks), f"I1: the index counts {counts} rollouts and tasks, and not {tasks}"


def _again(collect: Collect, server: Server) -> float:
    """Nothing is played, and how long that takes."""
    server.reset()
    began = time.monotonic()
    ended: Ended = collect.run()
    assert ended.code == 0, ended
    assert server.stats().requests == 0, f"I1: {server.stats().requests} calls for an output that is done"
    return time.monotonic() - began
