"""`rollmill collect` and `ng_collect_rollouts` as processes, as people run them."""

import fcntl
import gzip
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import threading
import time
from collections import Counter

import pytest
import zstandard

QUESTION = {
    "responses_create_params": {"input": [{"role": "user", "content": "Which?"}]},
    "options": [{"A": "one"}, {"B": "two"}],
    "expected_answer": "B",
}
OPENAI = "responses_api_models/openai_model/configs/openai_model.yaml"
CONFIGS = f"+config_paths=[resources_servers/mcqa/configs/mcqa.yaml,{OPENAI}]"


def questions(count: int) -> list[dict]:
    return [{**QUESTION, "uuid": f"q{number}"} for number in range(count)]


def asked(count: int) -> list[dict]:
    """Questions that a model can tell from each other."""
    return [{**row, "responses_create_params": {"input": f"Which, {row['uuid']}?"}} for row in questions(count)]


def places(rows: list[dict]) -> list[tuple[int, int]]:
    return sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)


def wait_for_lines(path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert time.monotonic() < deadline, "no rows"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_the_command_of_the_seeds(shell, serve_model):
    server = serve_model()
    shell.write("tasks.jsonl", *questions(6))
    done = shell.run(
        "ng_collect_rollouts",
        CONFIGS,
        "+agent_name=mcqa_simple_agent",
        "+input_jsonl_fpath=tasks.jsonl",
        "+output_jsonl_fpath=out/rollouts.jsonl",
        "+num_samples_in_parallel=128",
        "+num_repeats=2",
        "+limit=5",
        "+responses_create_params.max_output_tokens=512",
        f"+policy_base_url={server.url}",
        "+policy_api_key=canary-key-123",
        "+policy_model_name=served",
    )
    assert done.returncode == 0, done.stderr
    rows = shell.rows("out/rollouts.jsonl")
    assert places(rows) == [(task, repeat) for task in range(5) for repeat in range(2)]
    assert all(row["reward"] == 1 and row["extracted_answer"] == "B" for row in rows)
    assert all(row["responses_create_params"]["max_output_tokens"] == 512 for row in rows)
    assert {body["model"] for body in server.heard} == {"served"}
    assert set(server.keys) == {"Bearer canary-key-123"}
    assert re.search(r"Collecting rollouts: 100%\|█+\| 10/10 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+it/s", done.stderr)
    assert json.loads(done.stdout[: done.stdout.index("}") + 1])["reward"] == 1
    for path in shell.folder.rglob("*"):
        assert path.is_dir() or b"canary-key-123" not in path.read_bytes(), path
    assert "canary-key-123" not in done.stdout + done.stderr
    assert [path.name for path in shell.folder.rglob("*.jsonl")].count("rollouts.jsonl") == 1
    assert len(list((shell.folder / "out").glob("*.jsonl"))) == 1


def test_the_modern_spelling_does_the_same(shell, serve_model):
    server = serve_model()
    shell.write("tasks.jsonl", *questions(3))
    shell.env["OPENAI_API_KEY"] = "k"
    done = shell.run(
        *("rollmill", "collect", "mcqa", "--model", "openai:served", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--out", "a.jsonl", "--temperature", "0.3", "--concurrency", "2"),
    )
    assert done.returncode == 0, done.stderr
    assert [row["responses_create_params"]["temperature"] for row in shell.rows("a.jsonl")] == [0.3] * 3
    assert server.keys[0] == "Bearer k"


def test_an_environment_by_name_and_a_model_by_its_file(shell, serve_model):
    server = serve_model()
    done = shell.run(
        *("rollmill", "collect", "mcqa", "--out", "a[1] b.jsonl", f"+config_paths=[{OPENAI}]"),
        *(f"+policy_base_url={server.url}", "+policy_api_key=k", "+policy_model_name=served"),
    )
    assert done.returncode == 0, done.stderr
    assert len(shell.rows("a[1] b.jsonl")) == 5


@pytest.mark.parametrize("name", ["resources_servers/mcqa", "environments/mcqa/", "mcqa"])
def test_an_environment_is_known_by_its_folder_too(shell, name):
    given = ("--input", "resources_servers/mcqa/data/example.jsonl", "--out", "a.jsonl")
    assert shell.run("rollmill", "collect", name, "--model", "scripted", *given).returncode == 0
    assert len(shell.rows("a.jsonl")) == 5


def test_everything_may_come_from_env_yaml_of_a_parent_folder(shell, serve_model):
    server = serve_model()
    (shell.folder / "env.yaml").write_text(
        f"policy_base_url: {server.url}\npolicy_api_key: k\npolicy_model_name: served\n"
        "config_paths:\n- resources_servers/mcqa/configs/mcqa.yaml\n"
        "- responses_api_models/openai_model/configs/openai_model.yaml\n"
    )
    inside = shell.folder / "a" / "b"
    inside.mkdir(parents=True)
    shell.folder = inside
    done = shell.run("ng_collect_rollouts", "+output_jsonl_fpath=rollouts.jsonl")
    assert done.returncode == 0, done.stderr
    assert "taking the example dataset" in done.stderr
    assert len(shell.rows("rollouts.jsonl")) == 5


def test_rows_go_to_the_agents_that_they_name(shell, serve_model):
    server = serve_model("the answer is \\boxed{B}; 7")
    sum_row = {"responses_create_params": {"input": "3+4"}, "answer": 7}
    shell.write(
        "tasks.jsonl",
        {**sum_row, "agent_ref": {"name": "arithmetic_simple_agent"}},
        {**QUESTION, "agent_ref": {"type": "responses_api_agents", "name": "mcqa_simple_agent"}},
    )
    done = shell.run(
        *("ng_collect_rollouts", "+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=a.jsonl"),
        CONFIGS.replace("[", "[environments/arithmetic/configs/arithmetic.yaml,"),
        *(f"+policy_base_url={server.url}", "+policy_api_key=k", "+policy_model_name=m"),
    )
    assert done.returncode == 0, done.stderr
    assert {row["agent_ref"]["name"]: row["reward"] for row in shell.rows("a.jsonl")} == {
        "arithmetic_simple_agent": 1.0,
        "mcqa_simple_agent": 1.0,
    }
    nameless = shell.run(
        *("ng_collect_rollouts", "+output_jsonl_fpath=b.jsonl"),
        CONFIGS.replace("[", "[environments/arithmetic/configs/arithmetic.yaml,"),
        *(f"+policy_base_url={server.url}", "+policy_api_key=k", "+policy_model_name=m"),
    )
    assert nameless.returncode == 2
    assert "which agent?" in nameless.stderr
    assert "arithmetic_simple_agent" in nameless.stderr
    assert "mcqa_simple_agent" in nameless.stderr


def test_running_again_finishes_what_is_missing_and_says_when_nothing_is(shell):
    shell.write("tasks.jsonl", *questions(4))
    words = (
        "rollmill",
        "collect",
        "mcqa",
        "--model",
        "scripted:\\boxed{B}",
        "--out",
        "a.jsonl",
        "--input",
        "tasks.jsonl",
    )
    assert shell.run(*words, "--limit", "2").returncode == 0
    first = (shell.folder / "a.jsonl").read_bytes()
    assert shell.run(*words, "--repeats", "2").returncode == 0
    whole = (shell.folder / "a.jsonl").read_bytes()
    assert whole.startswith(first)
    assert places(shell.rows("a.jsonl")) == [(task, repeat) for task in range(4) for repeat in range(2)]
    again = shell.run(*words, "--repeats", "2")
    assert again.returncode == 0
    assert "Nothing to do: a.jsonl holds all 8 rollouts" in again.stdout
    assert (shell.folder / "a.jsonl").read_bytes() == whole


def test_another_model_on_the_same_output_is_refused(shell):
    shell.write("tasks.jsonl", QUESTION)
    words = ("rollmill", "collect", "mcqa", "--input", "tasks.jsonl", "--out", "a.jsonl", "--model", "scripted")
    assert shell.run(*words).returncode == 0
    other = shell.run(*words, "--repeats", "2", "--temperature", "0.5")
    assert other.returncode == 2
    assert "sampling was {}, is {'temperature': 0.5}" in other.stderr
    assert "+new_segment=true to go on in this one" in other.stderr
    assert len(shell.rows("a.jsonl")) == 1
    meant = shell.run(*words, "--repeats", "2", "--temperature", "0.5", "+new_segment=true")
    assert meant.returncode in (0, 1), meant.stderr
    assert [row["responses_create_params"].get("temperature") for row in shell.rows("a.jsonl")] == [None, 0.5]
    assert len(json.loads((shell.folder / "a.run/manifest.json").read_text())["segments"]) == 2


def test_another_configuration_of_the_environment_or_agent_is_refused_too(shell):
    flags = ("--limit", "2", "--model", "scripted:1", "--out", "a.jsonl")
    words = ("rollmill", "collect", "arithmetic", *flags)
    assert shell.run(*words).returncode == 0
    other = shell.run(*words, "--repeats", "2", "+arithmetic.resources_servers.arithmetic.largest=9")
    assert other.returncode == 2
    assert "environment_config was {}, is {'largest': 9}" in other.stderr
    agent = "+arithmetic_simple_agent.responses_api_agents.simple_agent.max_steps=3"
    assert "agent_config was {}, is {'max_steps': 3}" in shell.run(*words, "--repeats", "2", agent).stderr


def test_the_input_as_output_is_refused_before_it_grows(shell):
    shell.write("a.jsonl", *questions(2))
    (shell.folder / "b.jsonl").symlink_to("a.jsonl")
    before = (shell.folder / "a.jsonl").read_bytes()
    done = shell.run("rollmill", "collect", "mcqa", "--model", "scripted", "--input", "a.jsonl", "--out", "b.jsonl")
    assert done.returncode == 2
    assert "is the input" in done.stderr
    assert (shell.folder / "a.jsonl").read_bytes() == before


def test_a_file_of_the_users_is_not_touched_by_a_run_that_is_refused(shell):
    path = shell.write("mine.jsonl", QUESTION, QUESTION)
    path.write_bytes(path.read_bytes()[:-3])
    before = path.read_bytes()
    shell.write("tasks.jsonl", QUESTION)
    flags = ("--model", "openai:m", "--base-url", "http://127.0.0.1:9/v1", "--input", "tasks.jsonl")
    assert shell.run("rollmill", "collect", "mcqa", *flags, "--out", "mine.jsonl").returncode == 2
    assert path.read_bytes() == before
    assert not (shell.folder / "mine.run").exists()


def test_rows_of_another_model_are_refused_also_without_the_runs_folder(shell):
    shell.write("tasks.jsonl", *questions(2))
    words = ("rollmill", "collect", "mcqa", "--input", "tasks.jsonl", "--out", "a.jsonl", "--model")
    assert shell.run(*words, "scripted").returncode == 0
    shutil.rmtree(shell.folder / "a.run")
    (shell.folder / "none.gguf").touch()
    other = shell.run(*words, "none.gguf", "--repeats", "2")
    assert other.returncode == 2
    assert "with the model 'scripted', not 'none.gguf'" in other.stderr


def test_rows_keep_the_indices_that_they_bring(shell):
    shell.write("tasks.jsonl", *({**row, "_ng_task_index": 10 - n} for n, row in enumerate(questions(3))))
    flags = ("--model", "scripted", "--input", "tasks.jsonl", "--out", "a.jsonl")
    assert shell.run("rollmill", "collect", "mcqa", *flags).returncode == 0
    assert {row["uuid"]: row["_ng_task_index"] for row in shell.rows("a.jsonl")} == {"q0": 10, "q1": 9, "q2": 8}


def test_an_index_that_another_task_has_is_refused(shell):
    first, second = questions(2)
    shell.write("tasks.jsonl", first, {**second, "_ng_task_index": 0})
    done = shell.run("rollmill", "collect", "mcqa", "--model", "scripted", "--input", "tasks.jsonl", "--out", "a.jsonl")
    assert done.returncode == 2
    assert "a row brings _ng_task_index 0, which another task has got" in done.stderr


def test_one_stray_refusal_does_not_stop_a_run(shell, serve_model):
    server = serve_model(lambda body: 404 if "q3" in json.dumps(body) else "\\boxed{B}")
    rows = [{**QUESTION, "responses_create_params": {"input": f"q{number}"}} for number in range(12)]
    shell.write("tasks.jsonl", *rows)
    done = shell.run(
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--out", "a.jsonl", "--concurrency", "2"),
    )
    assert done.returncode == 1
    assert len(shell.rows("a.jsonl")) == 11


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_do_not_matter(shell, redirect):
    command = f"rollmill collect mcqa --model scripted --limit 2 --out a.jsonl {redirect}"
    assert shell.run("bash", "-c", command).returncode in (0, 1)
    assert len(shell.rows("a.jsonl")) == 2


def test_a_failed_slot_is_counted_and_named_and_done_until_it_is_asked_for_again(shell, serve_model):
    faulty = {"q1"}
    server = serve_model(lambda body: 400 if faulty and "q1" in json.dumps(body) else "\\boxed{B}")
    shell.write("tasks.jsonl", *asked(3))
    words = (
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--out", "a.jsonl"),
    )
    first = shell.run(*words)
    assert first.returncode == 1
    assert "failed    1 slot of 3 without a reward: 1 model: caller" in first.stdout
    assert "Slots: 3 asked for = 2 rewarded (66.7 %) + 1 failed + 0 owed" in first.stdout
    assert "a.run/failures.ndjson; +retry_failed=true plays them again" in first.stdout
    assert sorted(row["uuid"] for row in shell.rows("a.jsonl")) == ["q0", "q2"]
    failure = shell.rows("a.run/failures.ndjson")[0]
    assert failure["failure"]["kind"] == "caller"
    assert "scripted 400" in failure["failure"]["detail"]
    faulty.clear()
    again = shell.run(*words)
    assert again.returncode == 1
    assert "Nothing to do: a.jsonl holds all 3 rollouts, 1 of them failed for good" in again.stdout
    assert "+retry_failed=true plays the failed ones again" in again.stdout
    assert shell.run(*words, "+retry_failed=true").returncode == 0
    assert places(shell.rows("a.jsonl")) == [(0, 0), (1, 0), (2, 0)]
    assert shell.run(*words).returncode == 0


def test_an_environment_in_a_file_of_ones_own(shell):
    (shell.folder / "mine.py").write_text(
        "import rollmill as rm\n"
        "class Number(rm.Task):\n    n: int\n"
        "class Say(rm.Environment[Number]):\n"
        "    @classmethod\n    def tasks(cls, config, seed):\n"
        "        return (Number.of(f'say {n}', n=n) for n in range(100))\n"
        "    @rm.reward(cpu=True)\n    def right(task, trajectory, snapshot):\n"
        "        return str(task.n) in trajectory.answer\n"
    )
    done = shell.run("rollmill", "collect", "mine.py:Say", "--model", "scripted:3", "--limit", "5", "--out", "a.jsonl")
    assert done.returncode == 0, done.stderr
    assert {row["n"]: row["reward"] for row in shell.rows("a.jsonl")} == {0: 0, 1: 0, 2: 0, 3: 1, 4: 0}


BAD = {
    "unknown environment": (["mcqqa"], 'did you mean "mcqa"'),
    "unknown model": (["mcqa", "--model", "embeded"], 'did you mean "embedded"'),
    "no model": (["mcqa"], "--model embedded"),
    "no output": (["mcqa", "--model", "scripted", "--out", ""], "output_jsonl_fpath"),
    "unknown flag": (["mcqa", "--limt", "3"], "--limt"),
    "wrong type": (["mcqa", "--model", "scripted", "--limit", "three"], 'limit: expected int or null, got "three"'),
    "negative limit": (["mcqa", "--model", "scripted", "--limit", "-1"], "limit"),
    "wrong number": (["mcqa", "--model", "scripted", "--temperature", "hot"], "--temperature: invalid float value"),
    "zero repeats": (["mcqa", "--model", "scripted", "--repeats", "0"], "num_repeats"),
    "no input": (["mcqa", "--model", "scripted", "--input", "none.jsonl"], "none.jsonl is not there"),
    "input is a folder": (
        ["mcqa", "--model", "scripted", "--input", "."],
        "is a folder; name its files, for example ./*.jsonl",
    ),
    "empty stream": (["mcqa", "--model", "scripted", "--input", "-"], "there is no task in it"),
    "no file matches": (["mcqa", "--model", "scripted", "--input", "none/*.jsonl"], "no file matches none/*.jsonl"),
    "a file twice": (
        ["mcqa", "--model", "scripted", "+input_jsonl_fpath=[wrong.jsonl,./wrong.jsonl]"],
        "names a file twice; to play tasks more often, raise num_repeats",
    ),
    "a warning that does not exist": (["mcqa", "--model", "scripted", "+stop_if=[all_equal]"], "stop_if"),
    "a durability that does not exist": (["mcqa", "--model", "scripted", "+durability=disk"], "durability"),
    "output is a folder": (["mcqa", "--model", "scripted", "--out", "."], "a folder; name a file in it"),
    "output names a folder": (["mcqa", "--model", "scripted", "--out", "new/"], "a folder; name a file in it"),
    "output is a device": (["mcqa", "--model", "scripted", "--out", "/dev/null"], "not a regular file"),
    "output is the input": (
        ["mcqa", "--model", "scripted", "--input", "wrong.jsonl", "--out", "wrong.jsonl"],
        "wrong.jsonl, line 2: mcqa: expected_answer 'Z'",
    ),
    "a row without a key": (
        ["mcqa", "--model", "scripted", "--input", "wrong.jsonl"],
        "wrong.jsonl, line 2: mcqa",
    ),
    "a number too large": (["mcqa", "--model", "scripted", "--input", "huge.jsonl"], "huge.jsonl, line 1: "),
    "too deep": (["mcqa", "--model", "scripted", "--input", "deep.jsonl"], "deep.jsonl, line 1: not JSON"),
    "empty input": (["mcqa", "--model", "scripted", "--input", "empty.jsonl"], "there is no task in it"),
    "not JSON": (["mcqa", "--model", "scripted", "--input", "broken.jsonl"], "broken.jsonl, line 2: not JSON"),
    "no params": (["mcqa", "--model", "scripted", "--input", "bare.jsonl"], "bare.jsonl, line 1: the row has no `resp"),
    "no field": (["mcqa", "--model", "scripted", "--input", "short.jsonl"], "line 1: Object missing required field"),
    "unwritable": (["mcqa", "--model", "scripted", "--out", "empty.jsonl/x.jsonl"], "cannot be written"),
    "down": (["mcqa", "--model", "openai:m", "--base-url", "http://127.0.0.1:9/v1"], "cannot be reached"),
    "bad URL": (["mcqa", "--model", "openai:m", "--base-url", "nonsense"], "expected http://HOST"),
    "no file": (["mcqa", "--model", "./none.gguf"], "there is no such file"),
    "bad override": (["mcqa", "--model", "scripted", "+=3"], "+=3"),
    "unknown key in a section": (["mcqa", "--model", "scripted", "+deadlines.play=3"], 'did you mean "play_s"'),
    "unknown agent": (["mcqa", "--model", "scripted", "+agent_name=mcqa_agent"], "mcqa_simple_agent"),
    "two environments": (["mcqa", "shop", "--model", "scripted"], "one environment at a time"),
    "no such class": (["mine.py:Nothing", "--model", "scripted"], "mine.py"),
    "file that fails": (["mine.py:X", "--model", "scripted"], "ZeroDivisionError"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_clear_line(shell, words, said):
    shell.write("empty.jsonl")
    shell.write("broken.jsonl", QUESTION, "{not json")
    shell.write("bare.jsonl", {"options": []})
    shell.write("short.jsonl", {"responses_create_params": {"input": "a"}})
    shell.write("wrong.jsonl", QUESTION, {**QUESTION, "expected_answer": "Z"})
    shell.write("huge.jsonl", json.dumps(QUESTION)[:-1] + ', "f": 1e400}')
    shell.write("deep.jsonl", json.dumps(QUESTION)[:-1] + ', "f": ' + "[" * 5000 + "]" * 5000 + "}")
    (shell.folder / "mine.py").write_text("1 / 0\n")
    before = sorted(path.name for path in shell.folder.iterdir())
    given = words if "--out" in words else [*words, "--out", "a.jsonl"]
    done = shell.run("rollmill", "collect", *given)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in shell.folder.iterdir() if path.name != "__pycache__") == before


def test_all_variables_that_are_not_set_are_named_at_once(shell):
    done = shell.run("ng_collect_rollouts", CONFIGS, "+output_jsonl_fpath=a.jsonl", "+policy_model_name=m")
    assert done.returncode == 2
    assert "+policy_base_url=… +policy_api_key=…" in done.stderr
    assert "policy_model_name" not in done.stderr


def test_a_wrong_key_stops_the_run_with_the_servers_words(shell, serve_model):
    server = serve_model(lambda _: 401)
    shell.write("tasks.jsonl", *questions(50))
    shell.env["OPENAI_API_KEY"] = "canary-key-123"
    done = shell.run(
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--out", "a.jsonl", "--concurrency", "4"),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("rollmill: the model 'policy_model' refuses every request: ")
    assert "401" in done.stderr
    assert len(server.heard) <= 8


def slow_run(shell, serve_model, *words: str, **options) -> subprocess.Popen:
    server = serve_model(lambda _: time.sleep(0.15) or "\\boxed{B}")
    shell.write("tasks.jsonl", *questions(60))
    return shell.start(
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--out", "a.jsonl", "--concurrency", "4", *words),
        **options,
    )


def test_ctrl_c_once_lets_what_runs_end_and_the_same_command_goes_on(shell, serve_model):
    process = slow_run(shell, serve_model)
    wait_for_lines(shell.folder / "a.jsonl", 5, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Stopping: waiting for" in err
    assert "the same command plays what is missing:\n  rollmill collect mcqa" in out
    some = len(shell.rows("a.jsonl"))
    assert 5 <= some < 60
    process = slow_run(shell, serve_model)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert places(shell.rows("a.jsonl")) == [(task, 0) for task in range(60)]


def test_ctrl_c_twice_stops_at_once_and_loses_nothing_that_was_recorded(shell, serve_model):
    server = serve_model(lambda _: time.sleep(30) or "late")
    shell.write("tasks.jsonl", *questions(8))
    process = shell.start(
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--out", "a.jsonl"),
    )
    deadline = time.monotonic() + 30
    while len(server.heard) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert "Stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "the same command plays what is missing" in out


def test_signals_are_heard_while_nothing_waits(shell):
    process = shell.start(
        *("rollmill", "collect", "arithmetic", "--model", "scripted:4", "--limit", "300000", "--out", "a.jsonl"),
        "+policy_api_key=canary-key-123",
    )
    wait_for_lines(shell.folder / "a.jsonl", 100, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Stopping" in err
    assert "canary-key-123" not in out + err


def test_the_third_ctrl_c_leaves_a_reward_that_holds_everything(shell):
    (shell.folder / "mine.py").write_text(
        "import rollmill as rm\n"
        "class Hang(rm.Environment[rm.Task]):\n"
        "    def verify(self, task, response):\n"
        "        print('hanging', flush=True)\n        while True: pass\n"
    )
    shell.write("tasks.jsonl", {"responses_create_params": {"input": "x"}})
    flags = ("--model", "scripted", "--input", "tasks.jsonl", "--out", "a.jsonl")
    process = shell.start("rollmill", "collect", "mine.py:Hang", *flags)
    assert "hanging" in process.stdout.readline()
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    process.communicate(timeout=15)
    assert process.returncode == 130


def test_kill_9_in_the_middle_loses_and_doubles_nothing(shell, serve_model):
    for kills in range(3):
        process = slow_run(shell, serve_model)
        wait_for_lines(shell.folder / "a.jsonl", 8 * (kills + 1), process)
        process.kill()
        process.communicate()
    process = slow_run(shell, serve_model)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert places(shell.rows("a.jsonl")) == [(task, 0) for task in range(60)]


def test_a_second_run_on_the_same_output_is_refused(shell, serve_model):
    process = slow_run(shell, serve_model)
    wait_for_lines(shell.folder / "a.jsonl", 1, process)
    second = slow_run(shell, serve_model)
    _, err = second.communicate(timeout=30)
    assert second.returncode == 2
    assert f"pid {process.pid}" in err
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "lines"), [(40, 24), (120, 24), (100, 0), (None, None)])
def test_on_a_terminal_there_is_one_bar_however_wide_it_is(shell, serve_model, columns, lines):
    ours, theirs = pty.openpty()
    if columns:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = slow_run(shell, serve_model, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:
        pass  # the terminal's other end has closed
    process.communicate(timeout=30)
    os.close(ours)
    text = seen.decode()
    assert process.returncode == 0
    assert "60/60" in text
    assert text.count("\n") <= 3
    assert max(len(part) for part in re.split(r"[\r\n]+", re.sub(r"\x1b\[[A-Z]", "", text))) <= (columns or 100)


def test_sigterm_lets_what_runs_end(shell, serve_model):
    process = slow_run(shell, serve_model)
    wait_for_lines(shell.folder / "a.jsonl", 5, process)
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert re.search(r"Stopping: waiting for \d rollouts?, 20 s at most", err)
    assert "Stopped early; the same command plays what is missing:\n  rollmill collect mcqa" in out
    assert re.search(r"Slots: 60 asked for = \d+ rewarded \([\d.]+ %\) \+ 0 failed \+ \d+ owed", out)


def test_sigterm_waits_no_longer_than_the_grace(shell, serve_model):
    release = threading.Event()
    server = serve_model(lambda _: release.wait(60) and "late")
    shell.write("tasks.jsonl", *questions(8))
    process = shell.start(
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--out", "a.jsonl", "+grace_s=0.5"),
    )
    deadline = time.monotonic() + 30
    while not server.heard:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate(timeout=20)
    release.set()
    assert process.returncode == 143
    assert "Traceback" not in err


# What the input may be.


def collect_mcqa(shell, *words: str, answer: str = "scripted:\\boxed{B}", timeout: float = 120):
    return shell.run("rollmill", "collect", "mcqa", "--model", answer, "--out", "a.jsonl", *words, timeout=timeout)


def test_several_inputs_of_several_kinds_are_one(shell):
    rows = asked(40)
    (shell.folder / "parts").mkdir()
    shell.write("parts/a.jsonl", *rows[:10])
    shell.write("parts/b.jsonl", *rows[10:20])
    text = "".join(json.dumps(row) + "\n" for row in rows).encode().splitlines(keepends=True)
    (shell.folder / "c.jsonl.gz").write_bytes(gzip.compress(b"".join(text[20:30])))
    (shell.folder / "d.jsonl.zst").write_bytes(zstandard.compress(b"".join(text[30:])))
    done = collect_mcqa(shell, "+input_jsonl_fpath=[parts/*.jsonl,c.jsonl.gz,d.jsonl.zst]")
    assert done.returncode == 0, done.stderr
    assert sorted(row["uuid"] for row in shell.rows("a.jsonl")) == sorted(row["uuid"] for row in rows)
    assert places(shell.rows("a.jsonl")) == [(task, 0) for task in range(40)]
    # The same tasks from elsewhere are the same tasks.
    shell.write("all.jsonl", *rows[::-1])
    again = collect_mcqa(shell, "--input", "all.jsonl")
    assert "Nothing to do: a.jsonl holds all 40 rollouts" in again.stdout


def test_tasks_come_from_standard_input(shell):
    shell.write("tasks.jsonl", *questions(30))
    command = "tail -n +11 tasks.jsonl | rollmill collect mcqa --model 'scripted:\\boxed{B}' --input - --out a.jsonl"
    done = shell.run("bash", "-c", command)
    assert done.returncode == 0, done.stderr
    assert sorted(row["uuid"] for row in shell.rows("a.jsonl")) == sorted(f"q{n}" for n in range(10, 30))
    assert "Slots: 20 asked for = 20 rewarded" in done.stdout
    whole = collect_mcqa(shell, "--input", "tasks.jsonl")
    assert "Slots: 30 asked for = 30 rewarded" in whole.stdout
    assert len(shell.rows("a.jsonl")) == 30


def test_a_bad_row_far_down_a_large_input_does_not_keep_the_first_from_being_played(shell):
    rows = [json.dumps({**row, "story": "x" * 6000}) for row in questions(2900)]
    path = shell.write("tasks.jsonl", *rows, "{oops")
    assert path.stat().st_size > 2**24
    done = collect_mcqa(shell, "--input", "tasks.jsonl")
    assert done.returncode == 2
    assert "tasks.jsonl, line 2901: not JSON" in done.stderr
    assert len(shell.rows("a.jsonl")) > 1000
    skipped = collect_mcqa(shell, "--input", "tasks.jsonl", "+skip_bad_rows=true")
    assert skipped.returncode == 0, skipped.stderr
    assert re.search(r"Skipped: \S*tasks.jsonl, line 2901: not JSON", skipped.stderr)
    assert len(shell.rows("a.jsonl")) == 2900


def test_bad_rows_are_skipped_where_that_is_wanted(shell):
    shell.write("tasks.jsonl", QUESTION, "{oops", {**QUESTION, "expected_answer": "Z"}, {**QUESTION, "uuid": "q"})
    done = collect_mcqa(shell, "--input", "tasks.jsonl", "+skip_bad_rows=true")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Skipped: \S*tasks.jsonl, line 2: not JSON", done.stderr)
    assert re.search(r"Skipped: \S*tasks.jsonl, line 3: mcqa: expected_answer 'Z'", done.stderr)
    assert "Skipped: 2 rows of the input that cannot be played" in done.stdout
    assert "Slots: 2 asked for = 2 rewarded" in done.stdout


# How often, how, and how many at once.

SPELL = """
import asyncio
import rollmill as rm
class Letters(rm.Task):
    n: int
class Quick(rm.Environment[Letters]):
    def verify(self, task, response):
        return 1.0
class Slow(rm.Environment[Letters]):
    running = most = 0
    async def setup(self):
        Slow.running += 1
        Slow.most = max(Slow.most, Slow.running)
        await asyncio.sleep(0.02)
    async def close(self):
        Slow.running -= 1
    def verify(self, task, response):
        return rm.Reward(1.0, metrics={"at_once": Slow.most})
"""


def two_agents(shell) -> tuple[str, ...]:
    (shell.folder / "mine.py").write_text(SPELL)
    agent = (
        "{{simple_agent: {{resources_server: {{type: resources_servers, name: {0}}}, "
        "model_server: {{type: responses_api_models, name: policy_model}}}}}}"
    )
    (shell.folder / "two.yaml").write_text(
        "quick: {resources_servers: {'mine.py:Quick': {}}}\nslow: {resources_servers: {'mine.py:Slow': {}}}\n"
        f"quick_agent: {{responses_api_agents: {agent.format('quick')}}}\n"
        f"slow_agent: {{responses_api_agents: {agent.format('slow')}}}\n"
    )
    rows = [
        {"responses_create_params": {"input": f"{n}"}, "n": n, "agent_ref": {"name": f"{name}_agent"}}
        for name in ("slow", "quick")
        for n in range(40)
    ]
    shell.write("tasks.jsonl", *rows)
    return ("rollmill", "collect", "+config_paths=[two.yaml]", "--model", "scripted", "--input", "tasks.jsonl")


def test_agents_differ_in_their_repeats(shell):
    done = shell.run(*two_agents(shell), "--out", "a.jsonl", "+num_repeats={quick_agent: 3, _default: 1}")
    assert done.returncode == 0, done.stderr
    agents = Counter(row["agent_ref"]["name"] for row in shell.rows("a.jsonl"))
    assert agents == {"quick_agent": 120, "slow_agent": 40}
    assert "Slots: 160 asked for = 160 rewarded (100.0 %) + 0 failed + 0 owed" in done.stdout
    assert "agent     quick_agent: reward 1.000 over 120" in done.stdout


def test_an_environment_that_is_slow_or_bounded_does_not_hold_up_the_other(shell):
    done = shell.run(*two_agents(shell), "--out", "a.jsonl", "--concurrency", "8", "+limits.environments.slow=2")
    assert done.returncode == 0, done.stderr
    rows = shell.rows("a.jsonl")
    assert max(row["at_once"] for row in rows if "at_once" in row) == 2
    # All of the quick ones come before most of the slow ones, though they are behind them in the input.
    last_quick = max(n for n, row in enumerate(rows) if row["agent_ref"]["name"] == "quick_agent")
    assert sum(row["agent_ref"]["name"] == "slow_agent" for row in rows[:last_quick]) < 30


def test_every_slot_is_asked_with_a_seed_of_its_own_that_stays(shell, serve_model):
    server = serve_model()
    shell.write("tasks.jsonl", *questions(3))
    words = (
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url),
        *("--input", "tasks.jsonl", "--repeats", "2", "+num_repeats_add_seed=true", "--out"),
    )
    assert shell.run(*words, "a.jsonl").returncode == 0
    rows = {
        (row["uuid"], row["_ng_rollout_index"]): row["responses_create_params"]["seed"] for row in shell.rows("a.jsonl")
    }
    assert len(set(rows.values())) == 6
    assert shell.run(*words, "b.jsonl", "--limit", "2").returncode == 0
    assert all(
        rows[row["uuid"], row["_ng_rollout_index"]] == row["responses_create_params"]["seed"]
        for row in shell.rows("b.jsonl")
    )
    # The Responses API knows no seed: it is in the row, and asked of the servers that take one.
    assert len(shell.rows("b.jsonl")) == 4


@pytest.mark.parametrize(
    ("durability", "said"), [("process", "survive this process"), ("power", "survive a power cut")]
)
def test_what_the_rollouts_survive_is_said(shell, durability, said):
    shell.write("tasks.jsonl", *questions(3))
    done = collect_mcqa(shell, "--input", "tasks.jsonl", f"+durability={durability}")
    assert done.returncode == 0, done.stderr
    assert f"Rollouts: a.jsonl (3 rows; they {said}" in done.stdout
    assert json.loads((shell.folder / "a.run/manifest.json").read_text())["runs"][0]["durability"] == durability


def test_an_output_may_be_compressed(shell):
    shell.write("tasks.jsonl", *questions(20))
    words = ("rollmill", "collect", "mcqa", "--model", "scripted:\\boxed{B}", "--input", "tasks.jsonl")
    assert shell.run(*words, "--out", "a.jsonl.zst", "--limit", "5").returncode == 0
    done = shell.run(*words, "--out", "a.jsonl.zst")
    assert done.returncode == 0, done.stderr
    assert "Slots: 20 asked for = 20 rewarded" in done.stdout
    assert (shell.folder / "a.run").is_dir()
    with (shell.folder / "a.jsonl.zst").open("rb") as file:
        content = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    assert places([json.loads(line) for line in content.splitlines()]) == [(task, 0) for task in range(20)]


def test_so_many_failures_stop_the_run_and_the_same_command_goes_on(shell, serve_model):
    server = serve_model(lambda body: 400 if re.search("q[0-9]?[13579][?]", json.dumps(body)) else "\\boxed{B}")
    shell.write("tasks.jsonl", *asked(60))
    words = (
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url, "--concurrency", "4"),
        *("--input", "tasks.jsonl", "--out", "a.jsonl"),
    )
    done = shell.run(*words, "+max_failures=5")
    assert done.returncode == 1
    assert "Stopped: 6 slots failed, and max_failures is 5; the same command plays what is missing" in done.stdout
    accounts = re.search(
        r"Slots: 60 asked for = (\d+) rewarded \([\d.]+ %\) \+ (\d+) failed \+ (\d+) owed", done.stdout
    )
    rewarded, failed, owed = map(int, accounts.groups())
    assert rewarded + failed + owed == 60
    assert rewarded == len(shell.rows("a.jsonl"))
    assert failed >= 6
    assert owed > 0
    whole = shell.run(*words)
    assert "Slots: 60 asked for = 30 rewarded (50.0 %) + 30 failed + 0 owed" in whole.stdout


def test_a_run_that_is_visibly_broken_is_stopped_where_that_is_wanted(shell, serve_model):
    server = serve_model(lambda _: time.sleep(0.02) or "\\boxed{A}")
    shell.write("tasks.jsonl", *questions(2000))
    done = shell.run(
        *("rollmill", "collect", "mcqa", "--model", "openai:m", "--base-url", server.url, "--concurrency", "8"),
        *("--input", "tasks.jsonl", "--out", "a.jsonl", "+stop_if=[equal_rewards,failures]"),
    )
    assert done.returncode == 1, done.stderr
    assert re.search(r"Warning: all [\d,]+ rewards are 0: look at the verification", done.stderr)
    assert "Stopped: stop_if=equal_rewards: all " in done.stdout
    assert 100 <= len(shell.rows("a.jsonl")) < 2000


# Verification put off.


def test_verification_can_be_put_off(shell):
    shell.write("tasks.jsonl", *questions(6))
    words = ("--input", "tasks.jsonl", "+verify=defer")
    done = collect_mcqa(shell, *words, "--limit", "4")
    assert done.returncode == 0, done.stderr
    rows = shell.rows("a.jsonl")
    assert [(row["reward"], row["verification_skipped"]) for row in rows] == [(0.0, True)] * 4
    assert "deferred  4 rollouts not verified: no mean counts them" in done.stdout
    assert '"reward"' not in done.stdout
    metrics = json.loads((shell.folder / "a.run/metrics.json").read_text())
    assert (metrics["unverified"], metrics["rewarded"], metrics["reward"]["mean"]) == (4, 0, None)
    # A resumed run knows them from their rows.
    shutil.rmtree(shell.folder / "a.run")
    more = collect_mcqa(shell, *words, "+skip_verification_reward=-1")
    assert "deferred  6 rollouts not verified" in more.stdout
    assert sorted(row["reward"] for row in shell.rows("a.jsonl")) == [-1.0, -1.0, 0.0, 0.0, 0.0, 0.0]


def test_verification_that_cannot_be_made_up_for_is_not_put_off(shell):
    (shell.folder / "mine.py").write_text(
        "import rollmill as rm\nclass Once(rm.Environment[rm.Task]):\n    verification = 'unsupported'\n"
        "    def verify(self, task, response):\n        return 1.0\n"
    )
    shell.write("tasks.jsonl", {"responses_create_params": {"input": "x"}})
    flags = ("--model", "scripted", "--input", "tasks.jsonl", "--out", "a.jsonl", "+verify=defer")
    done = shell.run("rollmill", "collect", "mine.py:Once", *flags)
    assert done.returncode == 2
    assert "Once declares verification = unsupported" in done.stderr
    assert not (shell.folder / "a.jsonl").exists()
    assert not (shell.folder / "a.run").exists()


@pytest.mark.slow
def test_the_embedded_run_survives_kill_9(shell):
    words = ("rollmill", "collect", "arithmetic", "--model", "embedded", "--limit", "20", "--repeats", "2")
    process = shell.start(*words, "--out", "runs/a.jsonl")
    wait_for_lines(shell.folder / "runs/a.jsonl", 20, process)
    process.kill()
    process.communicate()
    half = len(shell.rows("runs/a.jsonl"))
    assert 20 <= half < 40
    done = shell.run(*words, "--out", "runs/a.jsonl")
    assert done.returncode == 0, done.stderr
    rows = shell.rows("runs/a.jsonl")
    assert len(rows) == 40
    assert len(set(places(rows))) == 40
    slots = [tuple(row["rollmill"]["slot"].values()) for row in rows]
    assert len(set(slots)) == 40


def test_help_names_every_key_with_its_sentence(shell):
    for words in (["ng_collect_rollouts", "+help=true"], ["ng_collect_rollouts", "--help"]):
        done = shell.run(*words)
        assert done.returncode == 0
        assert "+output_jsonl_fpath  (required)" in done.stdout
        assert "How often each task is played" in done.stdout
        assert "Exit codes:" in done.stdout
