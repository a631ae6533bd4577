"""The recipes for scale in NeMo Gym's documents, run as they are written there: only their numbers are made small.

Where the documents are is said in test_scripts.py.
"""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest
from tests.conftest import Shell
from tests.seeds.test_scripts import SEEDS, block

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SEEDS.is_dir(), reason=f"NeMo Gym's documents are not in {SEEDS}"),
]

ENVIRONMENT = '''
import asyncio

import rollmill as rm


class Row(rm.Task):
    answer: str
    delay: float = 0.0


class Patient(rm.Environment[Row]):
    """Takes as long as the row says, so that rollouts end in another order than that of the input."""

    async def setup(self):
        await asyncio.sleep(self.task.delay)

    @rm.reward
    def right(self):
        return self.trajectory.answer == self.task.answer
'''

CONFIGURATION = """\
config_paths: [responses_api_models/scripted_model/configs/scripted_model.yaml]
policy_model:
  responses_api_models:
    scripted_model:
      lines: ["yes"]
patient:
  resources_servers:
    {folder}/patient.py:Patient: {{}}
my_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: patient}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""


def row(number: int) -> dict:
    """Every fifth is slow, and every third has no right answer."""
    return {
        "responses_create_params": {"input": f"Question {number}"},
        "number": number,
        "answer": "no" if number % 3 == 0 else "yes",
        "delay": 0.6 if number % 5 == 0 else 0.05,
    }


@pytest.fixture
def place(shell) -> Shell:
    """A folder in which `my_agent` is known."""
    (shell.folder / "patient.py").write_text(ENVIRONMENT)
    (shell.folder / "env.yaml").write_text(CONFIGURATION.format(folder=shell.folder))
    return shell


def bash(place: Shell, script: str, **options) -> subprocess.Popen:
    words = ("bash", "-uo", "pipefail", "-c", script)
    return place.start(*words, start_new_session=True, **options)


def ran(place: Shell, script: str) -> str:
    with bash(place, script) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return out


def numbers(place: Shell, name: str) -> list[int]:
    return sorted(row["number"] for row in place.rows(name))


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_incremental_collection_with_resume(place):
    # The first is still running when the command is killed.
    place.write("large_dataset.jsonl", row(0) | {"delay": 2.0}, *map(row, range(1, 60)))
    first = (
        block("004", "bash", "... process crashes")
        .replace("10000", "40")
        .replace("+limit=40", "+limit=40 +num_samples_in_parallel=4")
    )
    with bash(place, first) as process:
        deadline = time.monotonic() + 60
        while lines(place.folder / "rollouts.jsonl") < 12:
            assert time.monotonic() < deadline, "no rollouts"
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    said = ran(place, block("004", "bash", "completed=$(wc -l < rollouts.jsonl)"))
    completed = int(said.split()[1])
    assert completed == lines(place.folder / "rollouts.jsonl") >= 12
    early = set(numbers(place, "rollouts.jsonl"))
    assert early != set(range(completed)), "they ended in order, so nothing is tested"

    second = block("004", "bash", "tail -n +5248")
    for long, short in (("5248", completed + 1), ("5247", completed), ("10000", 40)):
        second = second.replace(long, str(short))
    said = ran(place, second)
    # Every row of the second input is there, none twice; of the first, those that had ended.
    assert numbers(place, "rollouts.jsonl") == sorted(early | set(range(completed, 40)))

    # What a count of lines could not know of is named, with the one command that plays it.
    owed = sorted(set(range(completed)) - early)
    told = re.search(r"Owed of an earlier input: (\d+) slots?, of tasks? ([\d, and]+); this plays them:\n  (.*)", said)
    assert int(told[1]) == len(owed)
    assert [int(number) for number in re.findall(r"\d+", told[2])] == owed
    command = told[3]
    assert command.split()[0] == "ng_collect_rollouts"
    done = ran(place, command)
    assert numbers(place, "rollouts.jsonl") == list(range(40))
    assert "Nothing to do" not in done
    assert "Nothing to do" in ran(place, first)


def chunked(place: Shell, *, rows: int, chunk: int) -> Shell:
    """The folder of the recipe with its chunks."""
    (place.folder / "datasets").mkdir()
    place.write("datasets/million_tasks.jsonl", *map(row, range(rows)))
    split = block("004", "bash", "split -l 10000 -d").replace("10000", str(chunk))
    ran(place, block("004", "bash", "mkdir -p outputs/million_scale") + split)
    inside = Shell(place.folder / "outputs/million_scale")
    inside.env = place.env
    return inside


def quoted(script: str) -> str:
    """What `watch` runs again and again."""
    return script[script.index("'") + 1 : script.rindex("'")]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed (Debian: apt-get install jq)")
def test_million_scale_generation(place):
    inside = chunked(place, rows=45, chunk=8)
    assert len(list(inside.folder.glob("chunk_*.jsonl"))) == 6
    parallel = block("004", "bash", "MAX_PARALLEL=4").replace("sleep 10", "sleep 0.2")
    monitor = block("004", "bash", "watch -n 30")
    watched, listed = quoted(monitor.partition("# Check")[0]), monitor.partition("# Check")[2].partition("\n")[2]
    counts: list[int] = []
    with bash(inside, parallel) as process:
        while process.poll() is None:
            out = inside.run("bash", "-c", watched).stdout.split()
            counts.append(int(out[0]) if out else 0)
            time.sleep(0.2)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "All chunks complete!" in out
    assert counts == sorted(counts)
    assert any(0 < count < 45 for count in counts), counts
    # The globs find outputs, and nothing of what lies beside them.
    assert ran(inside, listed).strip() == "6"
    assert ran(inside, watched).split() == ["45", "total"]

    said = ran(inside, block("004", "bash", "Concatenate all rollouts")).splitlines()
    assert said[0] == "Total rollouts: 45"
    rewards = [row["reward"] for row in inside.rows("final_million_rollouts.jsonl")]
    assert float(said[1]) == pytest.approx(statistics.fmean(rewards)) == pytest.approx(2 / 3)
    assert numbers(inside, "final_million_rollouts.jsonl") == list(range(45))

    merged = inside.run("rollmill", "merge", "merged.jsonl", "rollouts_chunk_*.jsonl")
    assert merged.returncode == 0, merged.stderr
    assert "(45 rows in 45 groups)" in merged.stdout
    assert [row["_ng_task_index"] for row in inside.rows("merged.jsonl")] == list(range(45))


@pytest.mark.parametrize(
    "put_together", ["cat rollouts_chunk_*.jsonl > a.jsonl", "rollmill merge a.jsonl rollouts_chunk_*.jsonl"]
)
def test_chunks_put_together_are_gone_on_with(place, put_together):
    inside = chunked(place, rows=10, chunk=4)
    ran(inside, block("004", "bash", "MAX_PARALLEL=4").replace("sleep 10", "sleep 0.2"))
    ran(inside, put_together)
    words = (
        "+agent_name=my_agent",
        "+input_jsonl_fpath=../../datasets/million_tasks.jsonl",
        "+output_jsonl_fpath=a.jsonl",
    )
    done = inside.run("ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stderr
    assert "Nothing to do" in done.stdout
    done = inside.run("ng_collect_rollouts", *words, "+num_repeats=2")
    assert done.returncode == 0, done.stderr
    assert numbers(inside, "a.jsonl") == sorted([*range(10)] * 2)
    found = {(row["number"], row["_ng_task_index"], row["_ng_rollout_index"]) for row in inside.rows("a.jsonl")}
    assert len({(index, rollout) for _, index, rollout in found}) == 20 if "merge" in put_together else len(found) == 20
    assert len({(number, index) for number, index, _ in found}) == 10


def test_lines_are_whole_while_it_runs(place):
    place.write("huge_dataset.jsonl", *map(row, range(40)))
    script = next(
        line
        for line in block("004", "bash", "+input_jsonl_fpath=huge_dataset.jsonl").split("\n\n")
        if "ng_collect_rollouts" in line
    ).replace("num_samples_in_parallel=20", "num_samples_in_parallel=2")
    watched = quoted(block("004", "bash", "watch -n 60 'wc -l").partition("\n\n# GPU")[0].partition("# Or monitor")[2])
    path = place.folder / "rollouts.jsonl"
    counts: list[int] = []
    with bash(place, script) as process:
        while process.poll() is None:
            if path.exists():
                content = path.read_bytes()
                counts.append(int(place.run("bash", "-c", watched).stdout.split()[0]))
                assert content.endswith(b"\n") or not content
                assert len([json.loads(line) for line in content.splitlines()]) <= counts[-1]
            time.sleep(0.1)
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert counts == sorted(counts)
    assert any(0 < count < 40 for count in counts), counts
    assert numbers(place, "rollouts.jsonl") == list(range(40))


def test_the_log_is_searched(place):
    place.write("tasks.jsonl", *map(row, range(12)))
    out = ran(place, block("004", "bash", "tee collection.log"))
    log = (place.folder / "collection.log").read_text().splitlines()
    progress = [line for line in log if "Collecting rollouts" in line]
    assert progress, log
    assert "12/12" in progress[-1]
    # What was written to the terminal, then what was found in the log.
    assert out.splitlines() == [*log, *progress]
    assert numbers(place, "rollouts.jsonl") == list(range(12))
