"""`rollmill status` as a process, beside the collection that it looks at."""

import json
import signal
import time

import pytest


@pytest.fixture
def collection(shell, serve_model):
    """Start a collection of so many questions, each answered after a moment."""
    started = []

    def start(count: int = 400, *words: str):
        server = serve_model(lambda _: time.sleep(0.05) or "\\boxed{B}")
        question = {"options": [{"A": "one"}, {"B": "two"}], "expected_answer": "B"}
        rows = ({"responses_create_params": {"input": f"Which, {number}?"}, **question} for number in range(count))
        shell.write("tasks.jsonl", *rows)
        flags = ("--model", "openai:served", "--base-url", server.url, "--concurrency", "4")
        files = ("--input", "tasks.jsonl", "--out", "a.jsonl")
        started.append(shell.start("rollmill", "collect", "mcqa", *flags, *files, *words))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(shell, true) -> dict:
    """What the status says as soon as it says this."""
    deadline = time.monotonic() + 60
    while True:
        asked = shell.run("rollmill", "status", "a.jsonl", "--json")
        if asked.returncode == 0 and true(found := json.loads(asked.stdout)):
            return found
        assert time.monotonic() < deadline, asked
        time.sleep(0.2)


def test_a_run_is_seen_while_it_runs_and_after_its_end(shell, collection):
    process = collection(100)
    during = wait_for(shell, lambda found: found["run"] and found["run"]["ended"])
    assert during["state"].startswith(f"running (pid {process.pid} on ")
    assert during["run"]["planned"] == 100
    assert 1 <= during["run"]["running"] <= 4
    text = shell.run("rollmill", "status", "a.jsonl").stdout
    assert f"a.jsonl: running (pid {process.pid}" in text
    assert " of 100 (" in text
    assert "rollouts/s" in text
    assert "tokens/s" in text
    assert "to go" in text
    assert "the oldest is task " in text
    process.communicate(timeout=60)
    after = json.loads(shell.run("rollmill", "status", "a.jsonl", "--json").stdout)
    assert (after["state"], after["owner"], after["rewarded"]) == ("finished", None, 100)
    assert after["run"]["reward_mean"] == 1


def test_a_run_that_was_killed_is_said_to_be_dead(shell, collection):
    process = collection()
    wait_for(shell, lambda found: found["rewarded"] > 0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    said = shell.run("rollmill", "status", "a.jsonl")
    assert said.returncode == 0
    assert "its process has died; the same command finishes what is missing" in said.stdout
    assert "to go" not in said.stdout


def test_a_watch_ends_with_what_it_watches(shell, collection):
    process = collection(60)
    wait_for(shell, lambda found: found["run"])
    watch = shell.run("rollmill", "status", "a.jsonl", "--watch", "--json", timeout=60)
    process.communicate(timeout=60)
    states = [json.loads(line)["state"] for line in watch.stdout.splitlines()]
    assert len(states) > 1
    assert states[0].startswith("running")
    assert states[-1] == "finished"


def test_several_outputs_are_seen_at_once(shell):
    for name in ("a.jsonl", "b.jsonl.zst"):
        flags = ("--model", "scripted:4", "--limit", "3", "--out", name)
        assert shell.run("rollmill", "collect", "arithmetic", *flags).returncode == 0
    said = shell.run("rollmill", "status", "a.jsonl", "b.jsonl.zst")
    assert [line for line in said.stdout.splitlines() if ":" in line and "jsonl" in line] == [
        "a.jsonl: finished",
        "b.jsonl.zst: finished",
    ]


def test_an_output_without_its_folder_is_read_and_nothing_is_made(shell):
    flags = ("--model", "scripted:4", "--limit", "3", "--out", "a.jsonl")
    shell.run("rollmill", "collect", "arithmetic", *flags)
    (shell.folder / "a.run").rename(shell.folder / "elsewhere")
    before = sorted(shell.folder.iterdir())
    said = shell.run("rollmill", "status", "a.jsonl")
    assert said.returncode == 0
    assert "a.jsonl: not running" in said.stdout
    assert sorted(shell.folder.iterdir()) == before


def test_what_is_not_there_is_said(shell):
    said = shell.run("rollmill", "status", "nothing.jsonl")
    assert (said.returncode, said.stderr) == (2, "rollmill: nothing.jsonl: there is no such output\n")
    assert list(shell.folder.iterdir()) == []
