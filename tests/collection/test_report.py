import pytest
from tests.collection.parts import FAILED, entry, hold

import rollmill as rm
from rollmill.collection.report import Report, counted
from rollmill.store.index import Index
from rollmill.store.totals import Totals


def report(*entries, retries=None) -> Report:
    index, totals = Index(None), Totals()
    hold(index, *entries)
    for one in entries:
        totals.add(one)
    found = Report(totals, index.clusters(), retries=retries)
    index.close()
    return found


def of(reward: float | None = 1.0, task: int = 0, repeat: int = 0, agent: str = "agent", **fields):
    slot = rm.Slot(agent, rm.Task.of(f"task {task}").identity, 0, repeat, task, repeat)
    return entry(reward, slot, **fields)


def grid(*tasks: tuple[float, ...]) -> list:
    return [of(reward, task, repeat) for task, rewards in enumerate(tasks) for repeat, reward in enumerate(rewards)]


def test_every_number_is_averaged_beside_how_many_it_is_over():
    found = report(*(of(reward, n, metrics={"accuracy": 0.5} if n else {}) for n, reward in enumerate((1.0, 0.0, 0.5))))
    means = found.means()
    assert (means["reward"], means["accuracy"]) == (0.5, 0.5)
    assert {"turns", "tool_calls", "input_tokens", "output_tokens"} <= set(means)
    over = found.metrics()["over"]
    assert (over["reward"], over["accuracy"], over["turns"]) == (3, 2, 3)


def test_failures_are_counted_and_never_averaged():
    found = report(of(1.0, 0), of(1.0, 1, failure=FAILED), of(1.0, 2, failure=FAILED))
    metrics = found.metrics()
    assert metrics["mean"]["reward"] == 1.0
    assert metrics["failures"] == {"tool: error": 2}
    assert (metrics["rollouts"], metrics["failed"]) == (1, 2)
    assert metrics["completion"] == pytest.approx(1 / 3)
    assert "failed    2 slots of 3 without a reward: 2 tool: error" in found.lines()


def test_what_was_not_verified_is_in_no_mean_of_rewards():
    found = report(of(0.5, 0), of(None, 1, input_tokens=10), of(None, 2, input_tokens=20))
    metrics = found.metrics()
    assert (metrics["rewarded"], metrics["unverified"], metrics["rollouts"]) == (1, 2, 3)
    assert metrics["reward"]["mean"] == 0.5
    assert metrics["over"]["reward"] == 1
    assert metrics["tokens"]["input_tokens"] == 30
    assert "deferred  2 rollouts not verified: no mean counts them" in found.lines()


def test_nothing_but_placeholders_has_no_reward_at_all():
    found = report(of(None, 0), of(None, 1))
    assert found.metrics()["reward"]["mean"] is None
    assert "reward" not in found.means()
    assert not any(line.startswith("reward") for line in found.lines())


def test_a_metric_with_the_name_of_a_count_keeps_it():
    found = report(of(1.0, metrics={"turns": 40, "output_tokens": 7}, turns=2, input_tokens=3, output_tokens=2))
    assert found.means()["turns"] == 40
    assert found.metrics()["tokens"] == {"input_tokens": 3, "output_tokens": 2}


def test_pass_at_k_is_reported_where_tasks_have_repeats():
    found = report(*grid((1.0, 0.0), (0.0, 0.0)))
    assert found.metrics()["pass"] == {
        "pass@1": {"value": 0.25, "tasks": 2},
        "pass@2": {"value": 0.5, "tasks": 2},
    }
    assert "passed    pass@1 25.0 %, pass@2 50.0 % (a reward of at least 1)" in found.lines()


def test_pass_at_k_says_its_tasks_where_they_differ():
    found = report(*grid((1.0, 0.0), (0.0, 0.0), (1.0,)))
    assert "passed    pass@1 50.0 % of 3, pass@2 50.0 % of 2 (a reward of at least 1)" in found.lines()


def test_no_pass_line_without_repeats():
    found = report(of(1.0))
    assert found.metrics()["pass"] == {}
    assert found.lines()[0] == "reward    1.000, 1 rollout of 1 task"


def test_the_interval_is_clustered_by_task():
    found = report(*grid(*[(float(task % 2),) * 10 for task in range(4)]))
    # Ten identical rollouts of a task say no more than one: as wide as for four numbers.
    assert found.metrics()["reward"]["ci95"] == pytest.approx(1.96 * (4 * 0.25 * 100 * 4 / 3) ** 0.5 / 40)
    assert found.lines()[0].startswith("reward    0.500 ± 0.566 (95 %, clustered by task), 40 rollouts of 4 tasks")


def test_agents_and_labels_have_their_own_means():
    found = report(
        of(1.0, 0, agent="one", labels={"dataset": "gsm"}),
        of(0.0, 1, agent="one", labels={"dataset": "math"}),
        of(0.5, 2, agent="two", labels={"dataset": "math"}),
        of(0.0, 3, agent="two", labels={"dataset": "math"}, failure=FAILED),
    )
    by = found.metrics()["by"]
    assert by["agent"]["one"] == {"reward": 0.5, "rewarded": 2, "ended": 2, "failed": 0}
    assert by["dataset"]["math"] == {"reward": 0.25, "rewarded": 2, "ended": 3, "failed": 1}
    lines = "\n".join(found.lines())
    assert "agent     one: reward 0.500 over 2" in lines
    assert "dataset   math: reward 0.250 over 2, 1 failed" in lines


def test_many_labels_are_cut_and_where_the_rest_is_is_said():
    found = report(*(of(1.0, n, labels={"task_name": f"t{n}"}) for n in range(30)))
    lines = [line for line in found.lines() if "t" in line and ": reward" in line]
    assert len(lines) == 8
    assert any("and 22 more in metrics.json" in line for line in found.lines())
    assert len(found.metrics()["by"]["task_name"]) == 30


def test_one_agent_alone_is_not_split():
    assert not any(line.startswith("agent") for line in report(of(1.0, 0), of(1.0, 1)).lines())


def test_time_is_split_by_stage():
    found = report(*(of(1.0, n, seconds={"model": 3.0, "verify": 1.0, "setup": 0.0}) for n in range(2)))
    assert "time      model 75 %, verify 25 % of 4.00 s a rollout" in found.lines()
    assert found.metrics()["seconds"]["model"] == {"mean": 3.0, "max": 3.0}


def test_retries_are_said_by_cause_the_commonest_first():
    found = report(of(1.0), retries={"overload": 3, "rate_limit": 1200})
    assert found.lines()[-1] == "retried   1,200 rate_limit, 3 overload"
    assert found.metrics()["retries"] == {"overload": 3, "rate_limit": 1200}


def test_rewards_without_end_are_no_invalid_json():
    import json

    import msgspec

    found = report(of(1e308, 0), of(1e308, 1))
    json.loads(msgspec.json.encode(found.metrics()), parse_constant=pytest.fail)


def test_nothing_is_reported_as_nothing():
    found = report()
    assert found.means() == {}
    assert found.lines() == []
    assert found.metrics()["completion"] is None


def test_things_are_counted_as_people_say_it():
    assert [counted(n, "slot") for n in (0, 1, 1200)] == ["0 slots", "1 slot", "1,200 slots"]
