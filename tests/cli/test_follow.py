"""Collections that follow inputs which grow, as commands."""

import gzip
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Shell

pytestmark = pytest.mark.slow

OWN = """
import asyncio
import rollmill as rm

class Row(rm.Task):
    number: int
    delay: float = 0.0

class Own(rm.Environment[Row]):
    async def setup(self):
        await asyncio.sleep(self.task.delay)

    @rm.reward
    def right(self):
        return True
"""


def row(number: int, **more) -> dict:
    return {"responses_create_params": {"input": f"Question {number}"}, "number": number, **more}


class Following:
    """A collection of an environment of its own that follows its input."""

    def __init__(self, shell: Shell, *words: str, **options) -> None:
        self.shell = shell
        flags = ("--model", "scripted", "--out", "out.jsonl", "--follow")
        self.process = shell.start("rollmill", "collect", "own.py:Own", *flags, *words, **options)

    def numbers(self) -> list[int]:
        path = self.shell.folder / "out.jsonl"
        return sorted(row["number"] for row in self.shell.rows("out.jsonl")) if path.exists() else []

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not true():
            assert time.monotonic() < deadline, self.numbers()
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def until_played(self, *numbers: int) -> None:
        self.until(lambda: self.numbers() == sorted(numbers))

    def status(self) -> dict:
        return json.loads(self.shell.run("rollmill", "status", "out.jsonl", "--json").stdout)

    def ended(self, number: int | None = None) -> tuple[int, str, str]:
        """Tell it to stop, if there is a signal, and wait: the exit code, and what it said."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.fixture
def follow(shell):
    (shell.folder / "own.py").write_text(OWN)
    started = []

    def start(*words: str, **options) -> Following:
        started.append(Following(shell, *words, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def append(path: Path, *rows: dict, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(map(json.dumps, rows)) + end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_file_is_followed_until_it_is_told_to_stop_and_then_nothing_is_owed(follow, shell, number):
    path = shell.write("tasks.jsonl", row(1), row(2))
    one = follow("--input", "tasks.jsonl")
    one.until_played(1, 2)
    append(path, row(3))
    one.until_played(1, 2, 3)
    half = json.dumps(row(4))
    append(path, end=half[:30])
    one.until(lambda: one.status()["run"]["ended"] == 3 and one.status()["run"]["waited_s"] is not None)
    assert one.status()["state"].startswith("running, following its input (pid ")
    text = shell.run("rollmill", "status", "out.jsonl").stdout
    assert "3 so far, and as many as come" in text
    assert "waiting   for rows, for 0:" in text
    append(path, end=half[30:] + "\n")
    one.until_played(1, 2, 3, 4)
    code, out, err = one.ended(number)
    assert code == 0, err
    assert "Slots: 4 asked for = 4 rewarded (100.0 %) + 0 failed + 0 owed" in out
    assert "Stopped when all that had come had ended" in out
    assert one.status()["state"] == "stopped"


def test_who_stops_it_in_the_middle_is_told_what_is_owed(follow, shell):
    path = shell.write("tasks.jsonl", row(1), *(row(number, delay=0.5) for number in range(2, 30)))
    one = follow("--input", "tasks.jsonl", "--concurrency", "2")
    one.until(lambda: 1 in one.numbers())
    code, out, _ = one.ended(signal.SIGTERM)
    assert code == 143
    assert "the same command plays what is missing" in out
    assert len(one.numbers()) < 20
    append(path, row(30))
    again = follow("--input", "tasks.jsonl")
    again.until_played(*range(1, 31))
    assert again.ended(signal.SIGTERM)[0] == 0


def test_it_ends_by_itself_when_nothing_new_has_come(follow, shell):
    shell.write("tasks.jsonl", row(1), json.dumps(row(2, delay=1.0)))
    one = follow("--input", "tasks.jsonl", "+follow_idle_s=0.5")
    code, out, err = one.ended()
    assert code == 0, err
    assert one.numbers() == [1, 2]
    assert "Stopped" not in out
    assert one.status()["state"] == "finished"
    assert one.status()["run"]["planned"] == 2
    code, out, _ = follow("--input", "tasks.jsonl", "+follow_idle_s=0.5").ended()
    assert (code, one.numbers()) == (0, [1, 2])
    assert "Nothing new has come: out.jsonl holds all 2 rollouts" in out


def test_files_join_a_folder_and_a_pattern(follow, shell):
    spool = shell.folder / "spool"
    spool.mkdir()
    one = follow("+input_jsonl_fpath=[spool, 'more-*.jsonl']")
    one.until(lambda: shell.run("rollmill", "status", "out.jsonl").stdout.startswith("out.jsonl: running, following"))
    append(spool / "b.part", row(1), row(2))
    (spool / "b.part").rename(spool / "b.jsonl")
    shell.write("more-1.jsonl", row(3))
    (spool / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(row(4)).encode() + b"\n"))
    one.until_played(1, 2, 3, 4)
    append(spool / "b.jsonl", row(5))
    (spool / "b.jsonl").rename(spool / "c.jsonl")
    one.until_played(1, 2, 3, 4, 5)
    code, _, err = one.ended(signal.SIGINT)
    assert code == 0
    assert "spool: nothing is there yet; what comes is played" in err
    assert "more-*.jsonl: nothing is there yet; what comes is played" in err


def test_a_log_that_rotates(follow, shell):
    path = shell.write("tasks.jsonl", row(1), row(2))
    one = follow("--input", "tasks.jsonl")
    one.until_played(1, 2)
    append(path, row(3))
    path.rename(shell.folder / "tasks.jsonl.1")
    shell.write("tasks.jsonl", row(2), row(4))
    one.until_played(1, 2, 3, 4)
    path.write_text("")
    one.until(lambda: path.stat().st_size == 0)
    append(path, row(5), row(1))
    one.until_played(1, 2, 3, 4, 5)
    code, out, err = one.ended(signal.SIGTERM)
    assert code == 0, err
    assert "tasks.jsonl was replaced: it is read from its beginning" in err
    assert "5 asked for = 5 rewarded" in out


def test_rows_of_standard_input_are_played_as_they_come_and_its_end_is_the_end(follow):
    one = follow("--input", "-", stdin=subprocess.PIPE)
    for number in range(3):
        one.process.stdin.write(json.dumps(row(number)) + "\n")
        one.process.stdin.flush()
        one.until_played(*range(number + 1))
    one.process.stdin.write(json.dumps(row(3)))
    code, out, err = one.ended()
    assert code == 0, err
    assert one.numbers() == [0, 1, 2, 3]
    assert "Stopped" not in out


@pytest.mark.parametrize("kind", ["empty", "file"])
def test_standard_input_may_be_anything(follow, shell, kind):
    path = shell.write("tasks.jsonl", *([row(1)] if kind == "file" else []))
    with path.open() as stdin:
        code, _, err = follow("--input", "-", stdin=stdin).ended()
    assert code == (0 if kind == "file" else 2), err
    assert kind == "file" or "there is no task in it" in err


def test_a_limit_ends_it_too(follow, shell):
    path = shell.write("tasks.jsonl", row(1))
    one = follow("--input", "tasks.jsonl", "--limit", "3")
    one.until_played(1)
    append(path, *map(row, range(2, 9)))
    assert one.ended()[0] == 0
    assert one.numbers() == [1, 2, 3]


def test_a_bad_row_stops_it_or_is_passed_over(follow, shell):
    path = shell.write("tasks.jsonl", row(1))
    one = follow("--input", "tasks.jsonl")
    one.until_played(1)
    append(path, row(2), {"number": 3}, row(4))
    code, _, err = one.ended()
    assert code == 2
    assert "tasks.jsonl, line 3: the row has no `responses_create_params`" in err
    one = follow("--input", "tasks.jsonl", "+skip_bad_rows=true")
    one.until_played(1, 2, 4)
    code, out, _ = one.ended(signal.SIGINT)
    assert code == 0
    assert "Skipped: 1 row of the input" in out


def test_several_workers_follow_as_one_does(follow, shell):
    path = shell.write("tasks.jsonl", *map(row, range(10)))
    one = follow("--input", "tasks.jsonl", "+workers=2")
    one.until_played(*range(10))
    append(path, *map(row, range(10, 20)))
    one.until_played(*range(20))
    assert one.ended(signal.SIGTERM)[0] == 0


def test_nemo_gyms_files_are_of_what_is_there_when_it_is_stopped(follow, shell):
    path = shell.write("tasks.jsonl", *map(row, range(3)))
    one = follow("--input", "tasks.jsonl", "+nemo_gym_files=true", "--concurrency", "1")
    one.until_played(0, 1, 2)
    append(path, row(3, delay=5.0), row(4))
    one.until(lambda: (one.status()["run"]["running"], one.status()["run"]["ended"]) == (1, 3))
    code, _, err = one.ended(signal.SIGINT)
    assert code == 130, err
    assert one.numbers() == [0, 1, 2, 3]
    assert sorted(row["number"] for row in shell.rows("out_materialized_inputs.jsonl")) == [0, 1, 2, 3, 4]


def test_ng_collect_rollouts_follows_too(shell):
    shell.write("tasks.jsonl", row(1))
    (shell.folder / "own.py").write_text(OWN)
    (shell.folder / "env.yaml").write_text(
        "config_paths: [responses_api_models/scripted_model/configs/scripted_model.yaml]\n"
        f"own:\n  resources_servers:\n    {shell.folder}/own.py:Own: {{}}\n"
        "my_agent:\n  responses_api_agents:\n    simple_agent:\n"
        "      resources_server: {type: resources_servers, name: own}\n"
        "      model_server: {type: responses_api_models, name: policy_model}\n"
    )
    words = ("+agent_name=my_agent", "+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out.jsonl")
    done = shell.run("ng_collect_rollouts", *words, "+follow=true", "+follow_idle_s=0.2")
    assert done.returncode == 0, done.stderr
    assert [row["number"] for row in shell.rows("out.jsonl")] == [1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "follow: which input grows? Give +input_jsonl_fpath=…: a file, a folder, a pattern, or -"),
        (("--input", "nowhere/tasks.jsonl"), "nowhere/tasks.jsonl is not there, and neither is its folder"),
        (("--input", "."), "output out.jsonl: out.jsonl would be among the inputs that are followed"),
        (("--input", "*.jsonl"), "put it into another folder"),
        (("--input", "out_*.jsonl", "+nemo_gym_files=true"), "out_materialized_inputs.jsonl would be among the inputs"),
        (("--input", "tasks.jsonl", "+follow_idle_s=0"), "follow_idle_s: expected float > 0.0, got 0"),
        (("--input", "spool", "+follow=false"), "spool is a folder; name its files, for example spool/*.jsonl"),
        (("--input", "tasks.jsonl", "+follow=false", "+follow_idle_s=1"), "so give +follow=true, too"),
    ],
)
def test_what_cannot_be_followed_is_one_clear_line(follow, shell, words, said):
    (shell.folder / "spool").mkdir()
    shell.write("tasks.jsonl", row(1))
    code, _, err = follow(*words).ended()
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1


def test_an_estimate_is_of_what_is_there(shell):
    (shell.folder / "own.py").write_text(OWN)
    shell.write("tasks.jsonl", *map(row, range(4)))
    words = ("own.py:Own", "--model", "scripted", "--input", "tasks.jsonl", "+follow=true", "+follow_idle_s=1")
    done = shell.run("rollmill", "estimate", *words)
    assert done.returncode == 0, done.stderr
    assert "for 4 slots" in done.stdout
