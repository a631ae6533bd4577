"""Signals, terminals and pipes: a run ends when it is told to, says so, and goes on where it stopped."""

import fcntl
import json
import os
import pty
import shlex
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.conftest import BIN
from tests.crash.check import check, check_kept, check_rework, look, violations
from tests.crash.command import Collect, Running, wait_until

HOLDS_EVERYTHING = """
import rollmill as rm
class Hang(rm.Environment[rm.Task]):
    def verify(self, task, response):
        print("hanging", flush=True)
        while True:
            pass
"""


@pytest.fixture
def slow(tmp_path, serve, rows):
    """A collection that takes a while, and what it plays."""
    planned = rows(60)
    server = serve(latency_s=0.2)
    return Collect(tmp_path, server.url, concurrency=6), planned, server


def test_sigterm_lets_what_runs_end(slow):
    collect, planned, server = slow
    running = collect.start("+grace_s=20")
    running.wait_for_lines(10)
    running.signal(signal.SIGTERM)
    ended = running.wait(30)
    assert ended.code == 143
    assert "Stopping: waiting for" in ended.err
    assert "the same command plays what is missing" in ended.out
    found = check(collect.output, planned, finished=False)
    assert 10 <= len(found.rewarded) < 60
    # Nothing was on its way when it left.
    check_rework(server.asked(), found, allowed=0)
    before = collect.lines()
    collect.finish()
    check(collect.output, planned)
    check_kept(before, collect.lines())


def test_sigterm_does_not_wait_longer_than_its_grace(tmp_path, serve, rows):
    planned = rows(20)
    server = serve(turns=1, first={"straggler": 1}, straggler_s=60.0)
    collect = Collect(tmp_path, server.url, concurrency=5, deadlines={"first_byte_s": 90, "total_s": 90})
    running = collect.start("+grace_s=0.5")
    wait_until(lambda: len(server.asked()) == 5, 30)
    running.signal(signal.SIGTERM)
    assert running.wait(30).code == 143
    assert look(collect.output).ended == 0
    assert collect.none_left()
    collect.finish("--limit", "5")
    check(collect.output, planned[:5])


@contextmanager
def on_terminal(collect: Collect, *more: str) -> Iterator[tuple[Running, int, int]]:
    """Run it on a terminal of its own, whose two ends are given."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    log = collect.folder / "terminal"
    with log.open("wb") as seen:
        copy = subprocess.Popen(("cat",), stdin=ours, stdout=seen, stderr=subprocess.DEVNULL)
        running = collect.start(
            *more,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        try:
            yield running, ours, theirs
        finally:
            running.process.kill()
            running.process.wait()
            os.close(theirs)
            copy.wait(10)
            os.close(ours)


def shown(collect: Collect) -> str:
    return (collect.folder / "terminal").read_text(errors="replace")


def press_ctrl_c(terminal: int) -> None:
    os.write(terminal, b"\x03")


def test_ctrl_c_once_drains_and_leaves_the_terminal_as_it_was(slow):
    collect, planned, server = slow
    with on_terminal(collect) as (running, ours, theirs):
        before = termios.tcgetattr(theirs)
        running.wait_for_lines(10)
        press_ctrl_c(ours)
        assert running.process.wait(30) == 130
        assert termios.tcgetattr(theirs) == before
    assert "Stopping: waiting for" in shown(collect)
    assert "the same command plays what is missing" in shown(collect)
    found = check(collect.output, planned, finished=False)
    check_rework(server.asked(), found, allowed=0)
    collect.finish()
    check(collect.output, planned)


def test_ctrl_c_twice_cancels_and_keeps_what_had_ended(tmp_path, serve, rows):
    planned = rows(30)
    server = serve(turns=1, seed=2, faults={"straggler": 0.4}, straggler_s=80.0)
    collect = Collect(tmp_path, server.url, concurrency=8, deadlines={"first_byte_s": 90, "total_s": 90})
    with on_terminal(collect) as (running, ours, theirs):
        before = termios.tcgetattr(theirs)
        running.wait_for_lines(3)
        press_ctrl_c(ours)
        wait_until(lambda: "Stopping" in shown(collect), 20)
        press_ctrl_c(ours)
        assert running.process.wait(20) == 130
        assert termios.tcgetattr(theirs) == before
    answered = sum(one.said == "200" for one in server.stop())
    assert "Traceback" not in shown(collect)
    assert len(look(collect.output).rewarded) == answered
    assert violations(collect.output, planned, finished=False) == []
    assert collect.none_left()


def test_ctrl_c_three_times_leaves_what_holds_everything(tmp_path, serve, rows):
    rows(1)
    (tmp_path / "hang.py").write_text(HOLDS_EVERYTHING)
    collect = Collect(tmp_path, serve(turns=1).url, environment="hang.py:Hang")
    with on_terminal(collect) as (running, ours, theirs):
        before = termios.tcgetattr(theirs)
        wait_until(lambda: "hanging" in shown(collect), 30)
        for _ in range(3):
            press_ctrl_c(ours)
            # As a person does: two that come together, on their way through the terminal too, are one signal.
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(0.5)
        assert running.process.wait(20) == 130
        assert termios.tcgetattr(theirs) == before


def test_a_terminal_that_closes_does_not_end_the_run(slow):
    collect, planned, _ = slow
    running = collect.start()
    running.wait_for_lines(10)
    running.signal(signal.SIGHUP)
    assert running.wait().code == 0
    check(collect.output, planned)


def test_a_terminal_may_change_its_size(slow):
    collect, planned, _ = slow
    with on_terminal(collect) as (running, _, theirs):
        running.wait_for_lines(5)
        for columns in (40, 200, 1, 0, 80):
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            running.signal(signal.SIGWINCH)
        assert running.process.wait(60) == 0
    assert "Traceback" not in shown(collect)
    check(collect.output, planned)


@pytest.mark.slow
@pytest.mark.parametrize("pipe", ["| head -n 1", "2>&1 | head -n 1", "2>&1 >/dev/null | head -c 10", ">&- 2>&-"])
def test_readers_that_leave_early_do_not_stop_it(slow, pipe):
    collect, planned, _ = slow
    words = shlex.join(str(word) for word in collect.words)
    done = subprocess.run(
        ("bash", "-c", f"{words} +progress_every_s=0.2 {pipe}"),
        cwd=collect.folder,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    check(collect.output, planned)


def test_without_a_terminal_there_are_lines(slow):
    collect, planned, _ = slow
    ended = collect.finish("+progress_every_s=0.5")
    lines = [line for line in ended.err.splitlines() if "Collecting rollouts" in line]
    assert len(lines) >= 2
    assert "60/60" in lines[-1]
    assert "\r" not in ended.err
    assert json.loads(ended.out[: ended.out.index("}") + 1])["reward"] > 0
    check(collect.output, planned)
