"""`kill -9` while the input grows, and terminals that close: nothing is lost, nothing is doubled, nothing spins."""

import itertools
import json
import os
import random
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import Shell
from tests.crash.check import check, check_kept, check_rework, look
from tests.crash.command import Collect, Running, wait_until
from tests.crash.errands import Errands
from tests.crash.lives import check_death
from tests.crash.rows import errand
from tests.seeds.terminal import Terminal

CONCURRENCY = 8


class Writer(threading.Thread):
    """Appends rows to a log in a folder, in pieces that need not be lines; the log rotates within the folder."""

    def __init__(self, folder: Path, rows: list[dict], seed: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._rows = folder, rows
        self._chance = random.Random(seed)
        self._pause = threading.Event()

    def run(self) -> None:
        numbers = itertools.count()
        log = self._folder / "log.jsonl"
        for row in self._rows:
            line = msgspec.json.encode(row) + b"\n"
            cut = self._chance.randrange(len(line))
            for piece in (line[:cut], line[cut:]):
                with log.open("ab") as file:
                    file.write(piece)
                self._pause.wait(self._chance.choice((0.0, 0.0, 0.01, 0.05)))
            if self._chance.random() < 0.05:
                log.rename(self._folder / f"log-{next(numbers)}.jsonl")


@pytest.fixture
def follows(tmp_path) -> Iterator[Callable[..., Collect]]:
    """A collection that follows what it is given. It would do so for ever."""
    started: list[Running] = []

    class Following(Collect):
        def start(self, *more: str, **options: Any) -> Running:
            started.append(super().start(*more, **options))
            return started[-1]

    yield lambda url, rows: Following(
        *(tmp_path, url, "--follow", "+progress_every_s=0.1"), rows=rows, concurrency=CONCURRENCY
    )
    for running in started:
        running.process.kill()
        running.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_while_the_input_grows_lose_and_double_nothing(tmp_path, serve, follows, seed):
    chance = random.Random(seed)
    # Some rows are equal, and each of them is a slot.
    planned = [errand(chance.randrange(250)) for _ in range(300)]
    (tmp_path / "spool").mkdir()
    server = serve(latency_s=0.05, spread=0.5)
    collect = follows(server.url, "spool")
    writer = Writer(tmp_path / "spool", planned, seed)
    writer.start()
    held, kills = [], 0
    while writer.is_alive() or kills < 3:
        running = collect.start()
        writer.join(chance.uniform(1.0, 2.5))
        running.kill()
        kills += 1
        held = check_death(collect, running, planned, 1, held)
    collect.finish("+follow_idle_s=1")
    check(collect.output, planned)
    check_kept(held, collect.lines())
    check_rework(server.stop(), look(collect.output), allowed=kills * CONCURRENCY)
    assert collect.none_left(), collect.left_behind()


@pytest.mark.slow
def test_a_kill_between_two_rows_of_one_stretch(tmp_path, serve, follows):
    planned = [errand(number) for number in range(40)]
    path = tmp_path / "rows.jsonl"
    collect = follows(serve(turns=1).url, path.name)
    lines = [msgspec.json.encode(row) + b"\n" for row in planned]
    path.write_bytes(b"".join(lines[:10]))
    for number in range(10, 40, 10):
        running = collect.start()
        running.wait_for_lines(number)
        with path.open("ab") as file:
            file.write(b"".join(lines[number : number + 9]) + lines[number + 9][:-20])
        running.wait_for_lines(number + 9)
        running.kill()
        with path.open("ab") as file:
            file.write(lines[number + 9][-20:])
    collect.finish("+follow_idle_s=1")
    check(collect.output, planned)


# Terminals.


PRINTS = f"""
from {Errands.__module__} import Errands

class Loud(Errands):
    def offered_tools(self):
        print("an author prints", self.task.number)
        return super().offered_tools()
"""


def append(path: Path, rows: list[dict]) -> None:
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("where", ["", "&"], ids=["foreground", "background"])
def test_a_terminal_that_closes_is_no_end_and_nothing_spins(tmp_path, serve, workers, where):
    planned = [errand(number) for number in range(60)]
    rows = tmp_path / "rows.jsonl"
    append(rows, planned[:20])
    (tmp_path / "loud.py").write_text(PRINTS)
    collect = Collect(
        *(tmp_path, serve(latency_s=0.05).url, "--follow", f"+workers={workers}", "+progress_every_s=0.2"),
        environment="loud.py:Loud",
    )
    shell = Shell(tmp_path)
    shell.env["PYTHONPATH"] = str(Path(__file__).parents[2])

    def status() -> dict:
        return json.loads(shell.run("rollmill", "status", "out.jsonl", "--json").stdout)

    with Terminal(shell) as terminal:
        terminal.run(f"{shlex.join(collect.words)} {where}")
        wait_until(lambda: len(collect.lines()) == 20, 60)
        terminal.until("Collecting rollouts: 20it")
    pid, log = status()["run"]["pid"], collect.run_folder / "log.txt"
    try:
        append(rows, planned[20:40])
        wait_until(lambda: len(collect.lines()) == 40, 60)
        wait_until(lambda: status()["run"]["ended"] == 40 and status()["run"]["waited_s"] is not None, 60)
        spent, said, began = cpu_s(pid), len(log.read_bytes()), time.monotonic()
        time.sleep(3)
        assert cpu_s(pid) - spent < 0.3 * (time.monotonic() - began)
        # It has nothing to say, and nobody to say it to.
        assert len(log.read_bytes()) - said < 500
        append(rows, planned[40:])
        wait_until(lambda: len(collect.lines()) == 60, 60)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: status()["owner"] is None, 60)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert status()["state"] == "stopped"
    assert "Traceback" not in log.read_text()
    assert not (collect.run_folder / "failures.ndjson").exists()
    check(collect.output, planned)
