"""Reward profiles of rollouts of any origin."""

import json
import random

import pytest
import zstandard
from tests.data.rows import asked, foreign, read, write
from tests.store.rows import append, opened, rewarded, task

from rollmill.data.reward_profile import profile
from rollmill.errors import ConfigError
from rollmill.quality.aggregate import aggregate
from rollmill.types import decode, encode


@pytest.fixture
def rollouts(tmp_path):
    """Three tasks, played two times each, in any order."""
    rows = [foreign(task, n, float(task == n), right=task == n) for task in range(3) for n in range(2)]
    random.Random(0).shuffle(rows)
    return write(tmp_path / "a.jsonl", *rows)


def test_each_task_has_its_numbers_and_what_was_asked(tmp_path, rollouts):
    done = profile(rollouts)
    assert (done.rollouts, done.profiled, done.expected) == (6, 3, None)
    assert (done.tasks, done.agents) == (tmp_path / "a_reward_profiling.jsonl", tmp_path / "a_agent_metrics.json")
    rows = read(done.tasks)
    assert [row["_ng_task_index"] for row in rows] == [0, 1, 2]
    assert [row["mean/reward"] for row in rows] == [0.5, 0.5, 0.0]
    assert rows[1]["std/right"] == pytest.approx(0.5**0.5)
    assert rows[1]["rollout_infos"][1]["rollout_id"] == "1:1"
    assert rows[1]["agent_ref"] == {"name": "theirs"}
    assert rows[1]["sample"]["answer"] == "of 1"
    (agent,) = json.loads(done.agents.read_text())
    assert agent["agent_ref"] == {"name": "theirs"}
    assert agent["mean/reward"] == pytest.approx(1 / 3)
    assert agent["pass@2/reward"] == pytest.approx(200 / 3)
    assert not list(tmp_path.glob(".*"))


def test_a_profile_has_the_numbers_of_the_aggregate(rollouts):
    done = profile(rollouts)
    whole = aggregate(read(rollouts))
    rows = [{name: value for name, value in row.items() if name != "agent_ref"} for row in read(done.tasks)]
    assert rows == whole["group_level_metrics"]
    assert json.loads(done.agents.read_text())[0].items() >= whole["agent_metrics"].items()


def test_inputs_say_what_was_asked_and_how_much_is_missing(tmp_path, rollouts):
    inputs = write(tmp_path / "inputs.jsonl", *(asked(task, n) for task in range(4) for n in range(3)))
    with pytest.raises(ConfigError) as raised:
        profile(rollouts, inputs)
    assert "6 of 12 rollouts are missing" in str(raised.value)
    assert "the first is rollout 2 of task 0; collect them" in str(raised.value)
    assert not list(tmp_path.glob("*profiling*"))
    done = profile(rollouts, inputs, partial=True)
    assert (done.rollouts, done.profiled, done.expected) == (6, 3, 12)
    row = read(done.tasks)[2]
    assert (row["expected_num_rollouts"], row["missing_num_rollouts"]) == (3, 1)
    assert row["reward_profile_completion_pct"] == pytest.approx(200 / 3)
    sample = asked(2, 0)
    del sample["_ng_task_index"], sample["_ng_rollout_index"]
    assert row["sample"] == sample


def test_rollouts_that_nobody_asked_for_are_refused_whatever_is_allowed(tmp_path, rollouts):
    inputs = write(tmp_path / "inputs.jsonl", *(asked(task, n) for task in range(2) for n in range(2)))
    with pytest.raises(ConfigError, match=r"2 of its rollouts .*, the first is rollout 0 of task 2"):
        profile(rollouts, inputs, partial=True)


@pytest.mark.parametrize("where", ["rollouts", "inputs"])
def test_two_rows_for_one_rollout_are_refused(tmp_path, where):
    rollouts = [foreign(0, 0, 1.0), foreign(0, 1, 1.0)]
    inputs = [asked(0, 0), asked(0, 1)]
    (rollouts if where == "rollouts" else inputs).append({**inputs[0], "reward": 0.0})
    paths = write(tmp_path / "rollouts.jsonl", *rollouts), write(tmp_path / "inputs.jsonl", *inputs)
    with pytest.raises(ConfigError, match=rf"{where}.jsonl: lines 1 and 3 are both rollout 0 of task 0"):
        profile(*paths)


def test_our_own_compressed_output_says_what_it_was_asked(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    with opened(path) as store:
        append(store, *(rewarded(f"task {n}", repeat, n, float(n)) for n in (1, 0) for repeat in range(2)))
    done = profile(path)
    assert done.tasks == tmp_path / "a_reward_profiling.jsonl"
    rows = read(done.tasks)
    assert [row["mean/words"] for row in rows] == [3.0, 3.0]
    assert [row["sample"] for row in rows] == [decode(encode(task(f"task {n}").fields)) for n in range(2)]


def test_other_peoples_compressed_rollouts_are_read(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"reward": 1, "responses_create_params": {"input": "x"}}\n' * 3))
    row = read(profile(path).tasks)[0]
    assert (row["num_rollouts"], row["sample"]) == (3, {"responses_create_params": {"input": "x"}})


def test_agents_are_told_apart(tmp_path):
    rows = [foreign(n % 2, n // 2, float(n % 2), agent="ab"[n % 2]) for n in range(6)]
    done = profile(write(tmp_path / "a.jsonl", *rows))
    assert [row["agent_ref"]["name"] for row in read(done.tasks)] == ["a", "b"]
    assert [agent["mean/reward"] for agent in json.loads(done.agents.read_text())] == [0.0, 1.0]


def test_what_is_not_verified_counts_for_no_mean(tmp_path):
    rows = [foreign(0, 0, 1.0), foreign(0, 1, 0.0, verification_skipped=True)]
    done = profile(write(tmp_path / "a.jsonl", *rows))
    (row,) = read(done.tasks)
    assert (row["mean/reward"], row["num_rollouts"], row["unverified_num_rollouts"]) == (1.0, 1, 1)
    assert json.loads(done.agents.read_text())[0]["mean/reward"] == 1.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{torn", "line 2: not JSON"),
        ("[1]", "line 2: Expected `object`"),
        ('{"reward": 1, "_ng_task_index": -1}', "line 2: Expected `int` >= 0"),
        ('{"reward": 1}', "line 2: every row has a _ng_task_index or none has"),
        ('{"_ng_task_index": 1, "response": "no"}', "line 2: Expected `object | null`"),
    ],
)
def test_what_is_no_rollout_is_named_by_its_line(tmp_path, line, said):
    path = write(tmp_path / "a.jsonl", foreign(0, 0, 1.0), line)
    with pytest.raises(ConfigError) as raised:
        profile(path)
    assert str(raised.value).startswith(f"{path}, {said}")
    assert len(str(raised.value).splitlines()) == 1


def test_inputs_without_indices_and_files_without_rollouts_are_refused(tmp_path, rollouts):
    with pytest.raises(ConfigError, match="line 1: it has no _ng_task_index and _ng_rollout_index"):
        profile(rollouts, write(tmp_path / "tasks.jsonl", {"responses_create_params": {"input": "x"}}))
    with pytest.raises(ConfigError, match="there is no rollout in it"):
        profile(write(tmp_path / "empty.jsonl"))
