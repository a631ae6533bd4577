import pytest

import rollmill as rm
from rollmill.collection.report import Report
from rollmill.store.schema import read_summary, write_row


class Graded(rm.Environment[rm.Task]):
    def verify(self, task, response):
        return {"reward": float(response.output_text), "accuracy": 0.5, "note": "n"}


async def played(reward: float, task: int = 0, repeat: int = 0) -> rm.Rollout:
    slot = rm.Slot("agent", f"t{task}", 0, repeat, task, repeat)
    return await rm.play(rm.Task.of("x"), Graded, rm.ToolAgent(), rm.Scripted(str(reward)), slot=slot)


async def test_every_numeric_field_is_averaged():
    report = Report()
    for reward in (1.0, 0.0, 0.5, 0.5):
        report.ended(await played(reward))
    means = report.means()
    assert means["reward"] == 0.5
    assert means["accuracy"] == 0.5
    assert {"turns", "tool_calls", "input_tokens", "output_tokens"} <= set(means)
    assert "note" not in means


async def test_rollouts_of_an_earlier_run_count_the_same():
    fresh, resumed = Report(), Report()
    for task, reward in enumerate((1.0, 0.0, 1.0)):
        rollout = await played(reward, task)
        fresh.ended(rollout)
        resumed.stored(read_summary(write_row(rollout, "run")))
    old, new = fresh.metrics(), resumed.metrics()
    old.pop("seconds"), new.pop("seconds")
    assert old == new


async def test_failures_are_counted_and_never_averaged():
    class Broken(rm.Environment[rm.Task]):
        def verify(self, task, response):
            raise RuntimeError("no")

    report = Report()
    report.ended(await played(1.0))
    report.ended(await rm.play(rm.Task.of("x"), Broken, rm.ToolAgent(), rm.Scripted("a")))
    assert report.means()["reward"] == 1.0
    assert report.metrics()["failures"] == {"verifier: error": 1}
    assert report.lines()[-1].startswith("failed    1 slot")


async def test_a_metric_with_the_name_of_a_count_keeps_it():
    class Own(rm.Environment[rm.Task]):
        def verify(self, task, response):
            return {"reward": 1.0, "turns": 40, "output_tokens": 7}

    report = Report()
    report.ended(
        await rm.play(rm.Task.of("x"), Own, rm.ToolAgent(), rm.Scripted(rm.Reply((rm.assistant("a"),), rm.Usage(3, 2))))
    )
    assert report.means()["turns"] == 40
    assert report.metrics()["tokens"] == {"input_tokens": 3, "output_tokens": 2}


async def test_pass_at_k_is_reported_where_tasks_have_repeats():
    report = Report()
    for task, rewards in enumerate(((1.0, 0.0), (0.0, 0.0))):
        for repeat, reward in enumerate(rewards):
            report.ended(await played(reward, task, repeat))
    passes = report.metrics()["pass"]
    assert passes["pass@1"] == {"value": 0.25, "tasks": 2}
    assert passes["pass@2"] == {"value": 0.5, "tasks": 2}
    assert "pass@1 25.0 %" in "\n".join(report.lines())


async def test_no_pass_line_without_repeats():
    report = Report()
    report.ended(await played(1.0))
    assert report.metrics()["pass"] == {}
    assert "rollout of 1 task" in report.lines()[0]


async def test_the_interval_is_clustered_by_task():
    report = Report()
    for task in range(4):
        for repeat in range(10):
            report.ended(await played(float(task % 2), task, repeat))
    # Ten identical rollouts of a task say no more than one: as wide as for four numbers.
    assert report.metrics()["reward"]["ci95"] == pytest.approx(1.96 * (4 * 0.25 * 100 * 4 / 3) ** 0.5 / 40)


def test_nothing_is_reported_as_nothing():
    report = Report()
    assert report.means() == {}
    assert report.rollouts == 0
