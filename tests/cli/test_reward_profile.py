"""`rollmill reward-profile` and `ng_reward_profile` as processes."""

import pytest
from tests.data.rows import asked, foreign


def test_a_collection_is_profiled_by_both_spellings(shell):
    words = ("--model", "scripted:12", "--limit", "4", "--repeats", "2", "--out", "runs/a.jsonl")
    done = shell.run("rollmill", "collect", "arithmetic", *words, "+nemo_gym_files=true")
    assert done.returncode == 0, done.stderr
    inputs = "runs/a_materialized_inputs.jsonl"
    ng = ("ng_reward_profile", "+rollouts_jsonl_fpath=runs/a.jsonl", f"+materialized_inputs_jsonl_fpath={inputs}")
    for words in (ng, ("rollmill", "reward-profile", "runs/a.jsonl", "--inputs", inputs)):
        done = shell.run(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "Profiled 8 rollouts of 8, 4 tasks",
            "Profiling outputs:",
            "Reward profiling outputs: runs/a_reward_profiling.jsonl",
            "Agent-level metrics: runs/a_agent_metrics.json",
        ]
    assert [row["num_rollouts"] for row in shell.rows("runs/a_reward_profiling.jsonl")] == [2] * 4
    tasks = ("+input_jsonl_fpath=resources_servers/arithmetic/data/example.jsonl", "+output_jsonl_fpath=b.jsonl")
    done = shell.run("nemo_gym_reward_profile", "+rollouts_jsonl_fpath=runs/a.jsonl", *tasks, "+pass_threshold=1")
    assert done.stdout == "Profiled tasks: b.jsonl (4 rows of 4 tasks with rollouts)\n"
    assert [row["pass_rate"] for row in shell.rows("b.jsonl")] == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "missing: rollouts_jsonl_fpath"),
        (["+rollouts_jsonl_fpath=b.jsonl"], "rollouts_jsonl_fpath: b.jsonl is not there"),
        (["+rollouts_jsonl_fpath=a.jsonl", "+pass_threshold=1"], "pass_threshold belongs to the form with"),
        (
            ["+rollouts_jsonl_fpath=a.jsonl", "+allow_partial_rollouts=true", "+output_jsonl_fpath=b.jsonl"],
            "allow_partial_rollouts belongs to the form without",
        ),
        (["+rollouts_jsonl_fpath=a.jsonl", "+output_jsonl_fpath=a.jsonl"], "a.jsonl is one of the inputs"),
        (
            ["+rollouts_jsonl_fpath=a.jsonl", "+materialized_inputs_jsonl_fpath=inputs.jsonl"],
            "a.jsonl: 1 of 2 rollouts are missing that inputs.jsonl asks for",
        ),
    ],
)
def test_what_is_wrong_is_one_line(shell, words, said):
    shell.write("a.jsonl", foreign(0, 0, 1.0))
    shell.write("inputs.jsonl", asked(0, 0), asked(0, 1))
    done = shell.run("ng_reward_profile", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("rollmill: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
