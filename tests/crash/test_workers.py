"""`+workers=N`: processes that play are killed, stopped or at fault, and of the output everything stays true."""

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.crash.check import check, check_kept, check_rework, look, violations
from tests.crash.command import HERE, Collect, Running, wait_until
from tests.crash.lives import survive
from tests.crash.rows import errand, write_rows
from tests.crash.script import Script

PROGRAM = "rollmill.engines.program"
WRONG = """
import os, sys, time
import rollmill as rm
{body}
class World(rm.Environment[rm.Task]):
    def verify(self, task, response):
        return 0.5
"""
# The process that plans imports the file too.
IN_WORKER = "if any('rollmill.engines.program' in word for word in sys.orig_argv):\n    "


def workers_of(running: Running) -> list[int]:
    """The worker processes that a command has now."""
    found = []
    for path in Path(f"/proc/{running.pid}/task").glob("*/children"):
        found += [int(pid) for pid in path.read_text().split() if PROGRAM in words_of(int(pid))]
    return found


def words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_for_workers(running: Running, count: int = 2) -> list[int]:
    wait_until(lambda: len(workers_of(running)) >= count, 30)
    return workers_of(running)


def kill(*pids: int) -> None:
    for pid in pids:
        # It may have ended a moment ago.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def two(tmp_path, serve, rows):
    """A collection of two workers that takes a while, what it plays, and its model."""
    planned = rows(60)
    server = serve(latency_s=0.1)
    return Collect(tmp_path, server.url, "+workers=2", concurrency=8), planned, server


def as_played(collect: Collect) -> dict[tuple, dict]:
    """The rows of an output by their slots, without what is different each time."""
    rows = {}
    for line in collect.lines():
        row = json.loads(line)
        row["rollmill"].pop("seconds")
        row["rollmill"].pop("run")
        rows[row["_ng_task_index"], row["_ng_rollout_index"]] = row
    return rows


def test_two_workers_write_the_rows_that_one_writes(tmp_path, serve, rows):
    planned = rows(40)
    server = serve()
    outputs = []
    for workers in (1, 2):
        collect = Collect(
            tmp_path, server.url, "--repeats", "2", f"+workers={workers}", output=f"{workers}.jsonl", concurrency=8
        )
        ended = collect.finish()
        check(collect.output, planned, 2)
        outputs.append((as_played(collect), ended.out.replace(f"{workers}.jsonl", "").replace(f"{workers}.run", "")))
    (one, said_of_one), (two, said_of_two) = outputs
    assert one == two
    assert [line for line in said_of_one.splitlines() if not line.startswith("time")] == [
        line for line in said_of_two.splitlines() if not line.startswith("time")
    ]


def test_calls_that_failed_are_made_again_and_counted(tmp_path, serve, rows):
    planned = rows(40)
    server = serve(turns=1, first={"503": 1})
    collect = Collect(tmp_path, server.url, "+workers=2", concurrency=40)
    ended = collect.finish()
    check(collect.output, planned)
    assert "40 overload" in ended.out
    assert len(server.stop()) == 80


def test_failures_are_counted_and_slots_are_tried_again(tmp_path, serve):
    tempers = ("raises", "nan", "nothing")
    planned = [errand(number, temper=temper) for number, temper in enumerate([*tempers, *["kind"] * 20])]
    write_rows(tmp_path / "rows.jsonl", planned)
    world = f"{HERE / 'verifiers.py'}:Live"
    collect = Collect(tmp_path, serve(turns=1).url, "+workers=2", environment=world)
    ended = collect.run()
    assert ended.code == 1
    found = check(collect.output, planned)
    assert Counter(row["temper"] for row in found.rewarded) == {"kind": 20}
    assert {final["failure"]["where"] for final in found.finals} == {"verifier"}
    assert "20 rewarded" in ended.out
    assert "3 failed" in ended.out


def most_at_once(server, latency_s: float) -> int:
    """How many calls were on their way together at most, where each takes so long."""
    begun = [one.at for one in server.asked()]
    return max(sum(at <= other < at + latency_s for other in begun) for at in begun)


@pytest.mark.parametrize("concurrency", [1, 5])
def test_so_many_rollouts_run_at_once_in_all_workers_together(tmp_path, serve, rows, concurrency):
    planned = rows(20)
    server = serve(turns=1, latency_s=0.1)
    collect = Collect(tmp_path, server.url, "+workers=3", concurrency=concurrency)
    ended = collect.finish()
    assert ("3 workers are too many" in ended.err) == (concurrency < 3)
    check(collect.output, planned)
    assert 1 <= most_at_once(server, 0.09) <= concurrency


LIMITS = ("+limits.models.policy_model.concurrency=3", "+limits={{environments: {{{world}: 3}}}}")


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_hold_for_all_workers_together(tmp_path, serve, rows, limit):
    planned = rows(20)
    server = serve(turns=1, latency_s=0.1)
    collect = Collect(tmp_path, server.url, "+workers=2", limit.format(world="errands"), concurrency=16)
    collect.finish()
    check(collect.output, planned)
    assert 2 <= most_at_once(server, 0.09) <= 3


def test_a_worker_that_is_killed_is_replaced_and_its_slots_are_played_again(two):
    collect, planned, server = two
    running = collect.start()
    running.wait_for_lines(10)
    first = wait_for_workers(running)
    kill(first[0])
    wait_until(lambda: len(set(workers_of(running)) - set(first)) == 1, 5)
    assert running.wait().code == 0, running.said
    assert running.said.count("A worker process ended (killed by signal 9)") == 1
    found = check(collect.output, planned)
    assert {attempt["failure"]["kind"] for attempt in found.attempts} <= {"worker_died"}
    check_rework(server.asked(), found, allowed=4)
    assert collect.none_left(), collect.left_behind()


@pytest.mark.slow
def test_workers_killed_at_any_moment_lose_and_double_nothing(tmp_path, serve, rows):
    planned = rows(120)
    server = serve(latency_s=0.2, spread=0.5)
    collect = Collect(tmp_path, server.url, "+workers=3", "--repeats", "2", "+max_attempts=8", concurrency=24)
    chance, kills, running = random.Random(1), 0, collect.start()
    while running.process.poll() is None:
        time.sleep(chance.uniform(0.2, 0.9))
        if alive := workers_of(running):
            # At times all of them at once, at times one that only starts.
            doomed = chance.sample(alive, chance.choice((1, 1, 1, len(alive)))) if kills < 7 else []
            kill(*doomed)
            kills += len(doomed)
    assert running.wait().code == 0, running.said
    assert kills >= 4
    check(collect.output, planned, 2)
    check_rework(server.stop(), look(collect.output), allowed=kills * 8)
    assert collect.none_left(), collect.left_behind()


def test_all_workers_killed_at_once_are_replaced(two):
    collect, planned, _ = two
    running = collect.start()
    running.wait_for_lines(10)
    kill(*wait_for_workers(running))
    assert running.wait().code == 0, running.said
    check(collect.output, planned)


def test_a_worker_that_is_killed_when_it_starts_is_replaced(two):
    collect, planned, _ = two
    running = collect.start()
    kill(wait_for_workers(running, 1)[0])
    assert running.wait().code == 0, running.said
    assert "ended while it started" in running.said
    check(collect.output, planned)


def test_workers_that_are_killed_again_and_again_end_the_run_and_the_same_command_goes_on(two):
    collect, planned, server = two
    server.becomes(Script(latency_s=15.0))
    running = collect.start()
    while running.process.poll() is None:
        kill(*workers_of(running))
        time.sleep(0.1)
    ended = running.wait()
    assert ended.code == 1, ended
    last = ended.err.splitlines()[-1]
    assert last.startswith("rollmill: 5 worker processes ended one after the other")
    assert "Traceback" not in ended.err
    assert violations(collect.output, planned, finished=False) == []
    assert collect.none_left(), collect.left_behind()
    server.becomes(Script())
    collect.finish()
    check(collect.output, planned)


def test_a_task_that_kills_its_worker_fails_for_good_and_the_others_are_played(tmp_path, serve):
    planned = [errand(number, temper="is killed" if number == 20 else "kind") for number in range(40)]
    write_rows(tmp_path / "rows.jsonl", planned)
    (tmp_path / "deadly.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(HERE.parents[1])!r})\n"
        "from tests.crash.verifiers import Judged, judge, rage\n"
        "import rollmill as rm\n"
        "class Deadly(rm.Environment[Judged]):\n"
        "    @rm.reward\n"
        "    def worth(self) -> float:\n"
        "        rage(self.task.temper)\n"
        "        return judge(self.task, self.trajectory)\n"
    )
    collect = Collect(
        tmp_path, serve(turns=1).url, "+workers=2", "+max_attempts=2", environment="deadly.py:Deadly", concurrency=2
    )
    assert collect.run().code == 1
    found = check(collect.output, planned)
    assert [final["slot"]["task_index"] for final in found.finals] == [20]
    assert found.finals[0]["failure"]["kind"] == "worker_died"
    assert found.finals[0]["attempt"] == 2


@pytest.mark.slow
def test_a_killed_command_leaves_no_worker_and_can_go_on(tmp_path, serve, rows):
    planned = rows(80)
    server = serve(latency_s=0.1, spread=0.5)
    collect = Collect(tmp_path, server.url, "--repeats", "2", "+workers=2", "+progress_every_s=0.1", concurrency=12)
    chance = random.Random(1)
    kills = survive(collect, planned, 2, [chance.uniform(0.5, 2.2) for _ in range(3)])
    assert kills >= 2
    check_rework(server.stop(), look(collect.output), allowed=kills * 12)


def test_a_killed_command_leaves_no_worker_even_if_it_is_stopped_or_holds_everything(tmp_path, serve, rows):
    rows(2)
    (tmp_path / "hang.py").write_text(
        "import rollmill as rm\n"
        "class Hang(rm.Environment[rm.Task]):\n"
        "    def verify(self, task, response):\n"
        "        print('hanging', flush=True)\n"
        "        return sum(range(10**13))\n"
    )
    collect = Collect(tmp_path, serve(turns=1).url, "+workers=2", environment="hang.py:Hang", concurrency=2)
    running = collect.start()
    wait_until(lambda: running.said.count("hanging") == 2, 30)
    os.kill(workers_of(running)[0], signal.SIGSTOP)
    running.kill()
    assert collect.none_left(), collect.left_behind()


@pytest.mark.slow
def test_a_killed_command_leaves_no_reward_computing(tmp_path, serve):
    write_rows(tmp_path / "rows.jsonl", [errand(number, temper="loops in C") for number in range(4)])
    world = f"{HERE / 'verifiers.py'}:Pure"
    collect = Collect(tmp_path, serve(turns=1).url, "+workers=2", environment=world, concurrency=4)
    running = collect.start()
    wait_until(lambda: sum("verification.worker" in words for words in collect.left_behind()) >= 2, 30)
    running.kill()
    # Workers at once, their pools at the deadline of what is being computed.
    wait_until(lambda: not any(PROGRAM in words for words in collect.left_behind()), 5)
    assert collect.none_left(15), collect.left_behind()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_what_runs_end(two, number):
    collect, planned, server = two
    running = collect.start()
    running.wait_for_lines(10)
    # As a scheduler does it: the command hears it, and so does every worker.
    for pid in (*workers_of(running), running.pid):
        os.kill(pid, number)
    ended = running.wait(30)
    assert ended.code == 128 + number
    assert "Stopping: waiting for" in ended.err
    assert "Traceback" not in ended.err
    found = check(collect.output, planned, finished=False)
    assert 10 <= len(found.rewarded) < 60
    check_rework(server.asked(), found, allowed=0)
    assert collect.none_left(), collect.left_behind()
    before = collect.lines()
    collect.finish()
    check(collect.output, planned)
    check_kept(before, collect.lines())


def test_ctrl_c_twice_cancels_and_keeps_what_had_ended(tmp_path, serve, rows):
    planned = rows(30)
    server = serve(turns=1, seed=2, faults={"straggler": 0.4}, straggler_s=80.0)
    deadlines = {"first_byte_s": 90, "total_s": 90}
    collect = Collect(tmp_path, server.url, "+workers=2", concurrency=8, deadlines=deadlines)
    running = collect.start()
    running.wait_for_lines(3)
    running.signal(signal.SIGINT)
    running.wait_for_words("Stopping")
    running.signal(signal.SIGINT)
    ended = running.wait(20)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert collect.none_left(), collect.left_behind()
    assert violations(collect.output, planned, finished=False) == []
    assert len(look(collect.output).rewarded) >= 3
    server.becomes(Script(turns=1))
    collect.finish()
    check(collect.output, planned)


def test_ctrl_c_three_times_leaves_at_once_and_so_do_the_workers(tmp_path, serve, rows):
    planned = rows(30)
    server = serve(turns=1, latency_s=60.0)
    collect = Collect(tmp_path, server.url, "+workers=2", concurrency=8, deadlines={"first_byte_s": 90})
    running = collect.start()
    wait_until(lambda: len(server.asked()) == 8, 30)
    for words in ("Stopping", ""):
        running.signal(signal.SIGINT)
        running.wait_for_words(words)
    running.signal(signal.SIGINT)
    assert running.wait(20).code == 130
    assert collect.none_left(), collect.left_behind()
    server.becomes(Script(turns=1))
    collect.finish()
    check(collect.output, planned)


@pytest.mark.parametrize("moment_s", [0.0, 0.3])
def test_ctrl_c_while_workers_start_ends_the_command(tmp_path, serve, rows, moment_s):
    planned = rows(10)
    collect = Collect(tmp_path, serve().url, "+workers=2")
    running = collect.start()
    wait_for_workers(running, 1)
    time.sleep(moment_s)
    running.signal(signal.SIGINT)
    ended = running.wait(20)
    assert ended.code in (130, 0)
    assert "Traceback" not in ended.err
    assert collect.none_left(), collect.left_behind()
    collect.finish()
    check(collect.output, planned)


def one_line(collect: Collect, code: int) -> str:
    """The line with which a run ends that cannot go on: the last of what it says, and the only one of it."""
    ended = collect.run()
    assert ended.code == code, ended
    assert "Traceback" not in ended.err
    assert collect.none_left(), collect.left_behind()
    lines = [line for line in ended.err.splitlines() if line.startswith("rollmill: ")]
    assert len(lines) == 1, ended.err
    return lines[0]


def test_a_key_that_is_refused_ends_the_run(tmp_path, serve, rows):
    planned = rows(100)
    server = serve(turns=1, latency_s=0.02, faults={"401": 1.0})
    collect = Collect(tmp_path, server.url, "+workers=2", concurrency=8)
    assert "401" in one_line(collect, 2)
    assert len(server.asked()) <= 60
    server.becomes(Script(turns=1))
    collect.finish("+retry_failed=true")
    check(collect.output, planned, retried=True)


def test_a_model_that_is_gone_ends_the_run(tmp_path, serve, rows):
    planned = rows(60)
    server = serve(turns=1, latency_s=0.02, faults={"503": 1.0})
    collect = Collect(tmp_path, server.url, "+workers=2", "+outage_s=2", concurrency=8)
    assert "outage_s" in one_line(collect, 1)
    assert violations(collect.output, planned, finished=False) == []
    server.becomes(Script(turns=1))
    collect.finish()
    check(collect.output, planned)


WRONG_WORLDS = {
    "raises on import": ("raise KeyError('no such thing')", 2, "KeyError: 'no such thing'"),
    "raises on import in a worker": (f"{IN_WORKER}raise KeyError('no such thing')", 2, "KeyError: 'no such thing'"),
    "exits on import": (f"{IN_WORKER}os._exit(7)", 1, "ended while it started (exit code 7)"),
    "is not there": (f"{IN_WORKER}import no_such_module", 2, "No module named 'no_such_module'"),
}


@pytest.mark.parametrize("wrong", WRONG_WORLDS)
def test_an_environment_that_cannot_be_loaded_ends_the_run(tmp_path, serve, rows, wrong):
    body, code, words = WRONG_WORLDS[wrong]
    rows(10)
    (tmp_path / "wrong.py").write_text(WRONG.format(body=body))
    collect = Collect(tmp_path, serve().url, "+workers=2", environment="wrong.py:World")
    assert words in one_line(collect, code)


def test_a_worker_that_always_crashes_when_it_starts_ends_the_run(tmp_path, serve, rows):
    rows(10)
    (tmp_path / "wrong.py").write_text(WRONG.format(body=f"{IN_WORKER}os.kill(os.getpid(), 11)"))
    collect = Collect(tmp_path, serve().url, "+workers=2", environment="wrong.py:World")
    assert "5 worker processes ended one after the other while they started" in one_line(collect, 1)


def test_a_shared_world_that_fails_to_open_ends_the_run(tmp_path, serve, rows):
    rows(10)
    text = WRONG.format(body="from contextlib import asynccontextmanager") + (
        "    @classmethod\n    @asynccontextmanager\n    async def shared(cls, config):\n"
        "        raise OSError('the database is not there')\n        yield\n"
    )
    (tmp_path / "wrong.py").write_text(text)
    collect = Collect(tmp_path, serve().url, "+workers=2", environment="wrong.py:World")
    assert "the database is not there" in one_line(collect, 1)
