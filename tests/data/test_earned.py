"""Tasks with what their rollouts earned."""

import pytest
from tests.data.rows import foreign, read, write
from tests.store.rows import append, opened, rewarded, task

from rollmill.data.earned import write_earned
from rollmill.errors import ConfigError
from rollmill.types import decode, encode


def given(n: int) -> dict:
    return {"responses_create_params": {"input": [{"role": "user", "content": f"task {n}"}]}, "answer": f"of {n}"}


def test_a_task_gets_the_metrics_of_its_rollouts(tmp_path):
    rollouts = write(tmp_path / "a.jsonl", *(foreign(1, n, reward) for n, reward in enumerate([1.0, 0.5, 0.0, 0.5])))
    inputs = write(tmp_path / "tasks.jsonl", given(0), given(1), given(2))
    done = write_earned(rollouts, tmp_path / "out" / "b.jsonl", inputs, threshold=0.5)
    assert done == (1, 1)
    assert read(tmp_path / "out" / "b.jsonl") == [
        {
            **given(1),
            "avg_reward": 0.5,
            "std_reward": pytest.approx(0.125**0.5),
            "min_reward": 0.0,
            "max_reward": 1.0,
            "total_samples": 4,
            "pass_rate": 0.75,
            "pass_rate_total": 4,
            "pass_rate_passed": 3,
            "pass_threshold": 0.5,
        }
    ]


def test_without_a_threshold_nothing_is_said_of_passing(tmp_path):
    rollouts = write(tmp_path / "a.jsonl", foreign(0, 0, 1.0), foreign(1, 0, 0.0, verification_skipped=True))
    assert write_earned(rollouts, tmp_path / "b.jsonl") == (1, 2)
    (row,) = read(tmp_path / "b.jsonl")
    metrics = {"avg_reward": 1.0, "std_reward": 0.0, "min_reward": 1.0, "max_reward": 1.0, "total_samples": 1}
    assert row == given(0) | metrics


@pytest.fixture
def ours(tmp_path):
    """Two of three tasks, in an order of their own."""
    path = tmp_path / "a.jsonl"
    with opened(path) as store:
        append(store, *(rewarded(name, n, index, n) for index, name in enumerate(("c", "a")) for n in range(2)))
    return path


def test_rollouts_of_ours_find_their_tasks_in_an_input_of_any_order(tmp_path, ours):
    rows = [decode(encode(task(name).fields)) for name in "abc"]
    inputs = write(tmp_path / "tasks.jsonl", *rows)
    assert write_earned(ours, tmp_path / "b.jsonl", inputs) == (2, 2)
    found = read(tmp_path / "b.jsonl")
    assert [row["responses_create_params"] for row in found] == [rows[n]["responses_create_params"] for n in (0, 2)]
    assert [row["avg_reward"] for row in found] == [0.5, 0.5]


def test_without_an_input_the_rollouts_say_their_tasks(tmp_path, ours):
    write_earned(ours, tmp_path / "b.jsonl")
    assert [row["responses_create_params"]["input"][0]["content"] for row in read(tmp_path / "b.jsonl")] == [
        "What is c?",
        "What is a?",
    ]


def test_an_input_may_bring_indices(tmp_path):
    rollouts = write(tmp_path / "a.jsonl", foreign(7, 0, 1.0), foreign(3, 0, 0.0))
    inputs = write(tmp_path / "tasks.jsonl", *({**given(n), "_ng_task_index": n} for n in (7, 3)))
    write_earned(rollouts, tmp_path / "b.jsonl", inputs)
    assert [(row["answer"], row["avg_reward"]) for row in read(tmp_path / "b.jsonl")] == [("of 7", 1.0), ("of 3", 0.0)]


def test_rollouts_of_no_task_are_refused_and_nothing_is_written(tmp_path, ours):
    inputs = write(tmp_path / "tasks.jsonl", decode(encode(task("a").fields)))
    with pytest.raises(ConfigError, match=r"2 of its rollouts are of no row of .*, the first is rollout 0 of task 0"):
        write_earned(ours, tmp_path / "b.jsonl", inputs)
    assert not (tmp_path / "b.jsonl").exists()
    assert not list(tmp_path.glob(".*"))


def test_doubles_are_refused(tmp_path):
    rollouts = write(tmp_path / "a.jsonl", foreign(0, 0, 1.0), foreign(0, 0, 0.0))
    with pytest.raises(ConfigError, match="lines 1 and 2 are both rollout 0 of task 0"):
        write_earned(rollouts, tmp_path / "b.jsonl")
