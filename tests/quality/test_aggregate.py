"""What rows come to, by hand."""

import math

import pytest

from rollmill.quality.aggregate import aggregate
from rollmill.quality.tally import Counted, Tally


def foreign(task: int, rollout: int, reward: float, **fields) -> dict:
    """A row as another system writes it."""
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"task {task}"}]},
        "agent_ref": {"name": "theirs"},
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "reward": reward,
        "response": {"output": [], "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}},
        **fields,
    }


def test_every_number_and_truth_value_at_the_top_of_another_systems_row_is_counted():
    rows = [
        foreign(1, 0, 0.0, right=False, seconds=2, answer="A"),
        foreign(0, 1, 1.0, right=True, seconds=4.5, answer="B"),
        foreign(0, 0, 0.5, right=False, answer="A", nested={"n": 1}, _ng_attempt_index=3),
    ]
    found = aggregate(rows)
    assert found["key_metrics"] == {
        "mean/reward": 0.5,
        "mean/right": pytest.approx(1 / 3),
        "mean/seconds": 3.25,
        "mean/input_tokens": 10.0,
        "mean/output_tokens": 2.0,
        "mean/total_tokens": 12.0,
    }
    metrics = found["agent_metrics"]
    assert found["key_metrics"].items() <= metrics.items()
    assert (metrics["max/reward"], metrics["min/reward"], metrics["median/reward"]) == (1.0, 0.0, 0.5)
    assert metrics["std/reward"] == pytest.approx(0.5)
    assert metrics["std/seconds"] == pytest.approx(2.5 / math.sqrt(2))
    first, second = found["group_level_metrics"]
    assert (first["_ng_task_index"], second["_ng_task_index"]) == (0, 1)
    assert first["mean/reward"] == 0.75
    assert first["rollout_infos"] == [
        {
            "rollout_id": f"0:{number}",
            "_ng_task_index": 0,
            "_ng_rollout_index": number,
            **dict(zip(("reward", "right", "seconds"), numbers, strict=False)),
            "input_tokens": 10.0,
            "output_tokens": 2.0,
            "total_tokens": 12.0,
        }
        for number, numbers in enumerate([(0.5, 0.0), (1.0, 1.0, 4.5)])
    ]
    assert first["sample"] == {
        "responses_create_params": {"input": [{"role": "user", "content": "task 0"}]},
        "right": False,
        "answer": "A",
        "nested": {"n": 1},
    }
    assert (second["num_rollouts"], second["std/reward"]) == (1, 0.0)


def test_repeats_say_how_often_a_task_is_passed():
    rows = [
        foreign(task, n, reward) for task, rewards in enumerate([(1, 0), (0, 0)]) for n, reward in enumerate(rewards)
    ]
    metrics = aggregate(rows)["agent_metrics"]
    assert (metrics["pass@1/reward"], metrics["pass@2/reward"]) == (25.0, 50.0)
    assert metrics["pass@1[avg-of-2]/reward"] == 25.0
    # The first rollouts of both are one run with a mean of 50, the second another with 0.
    assert metrics["pass@1[avg-of-2]/reward/std_dev_across_runs"] == pytest.approx(math.sqrt(1250))
    assert metrics["pass@1[avg-of-2]/reward/avg_sample_std_dev"] == pytest.approx(50 * math.sqrt(0.5))


def test_what_is_not_verified_counts_for_no_mean_and_is_not_missing():
    rows = [foreign(0, 0, 1.0), foreign(0, 1, 0.0, verification_skipped=True), foreign(0, 3, 1.0)]
    found = aggregate(rows)
    assert found["key_metrics"]["mean/reward"] == 1.0
    (group,) = found["group_level_metrics"]
    assert (group["num_rollouts"], group["unverified_num_rollouts"]) == (2, 1)
    # There is a rollout 3, so that there are four at least.
    assert (group["expected_num_rollouts"], group["missing_num_rollouts"]) == (4, 1)
    assert group["reward_profile_completion_pct"] == 50.0


def test_rows_without_indices_belong_together_by_what_was_asked():
    def row(text: str, reward: float, **params) -> dict:
        return {"responses_create_params": {"input": text, **params}, "reward": reward}

    found = aggregate([row("b", 1.0), row("a", 0.0, seed=1), row("a", 1.0, seed=2), {"reward": 0.0}])
    assert [group["mean/reward"] for group in found["group_level_metrics"]] == [1.0, 0.5, 0.0]
    assert [one["rollout_id"] for one in found["group_level_metrics"][1]["rollout_infos"]] == ["1:0", "1:1"]


def test_what_is_no_number_counts_for_nothing():
    found = aggregate([foreign(0, 0, 1.0, a=math.nan, b=math.inf, c=10**400, d=None, e=[1]), foreign(1, 0, math.nan)])
    assert found["key_metrics"]["mean/reward"] == 1.0
    assert set(found["key_metrics"]) == {f"mean/{name}" for name in ("reward", *USAGE)}


USAGE = ("input_tokens", "output_tokens", "total_tokens")


def test_nothing_comes_to_nothing():
    assert aggregate([]) == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}


def test_stripped_rows_keep_their_usage():
    row = foreign(0, 0, 1.0)
    del row["responses_create_params"]
    assert aggregate([row])["agent_metrics"]["mean/total_tokens"] == 12.0


def test_where_a_rollout_measures_a_count_itself_the_others_do_not_have_it():
    tally = Tally()
    tally.add(0, 0, Counted({"reward": 1.0, "turns": 0.5}, {"turns": 3.0}))
    tally.add(0, 1, Counted({"reward": 0.0}, {"turns": 3.0}))
    metrics = tally.metrics()
    assert (metrics["mean/turns"], metrics["max/turns"]) == (0.5, 0.5)
    (group,) = tally.groups()
    assert [one.numbers["turns"] for one in group.seen] == [0.5, 3.0]
