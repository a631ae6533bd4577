import random

import rollmill as rm
from rollmill.collection.plan import Plan
from rollmill.collection.source import Planned
from rollmill.store.ledger import Ledger
from rollmill.store.schema import Summary, read_summary, write_row
from rollmill.types import encode, read_task


class Echo(rm.Environment[rm.Task]):
    def verify(self, task, response):
        return 1.0


def tasks(*texts: str) -> list[Planned]:
    return [Planned("agent", rm.Task.of(text)) for text in texts]


async def played(job) -> Summary:
    rollout = await rm.play(job.task, Echo, rm.ToolAgent(), rm.Scripted("ok"), slot=job.slot)
    return read_summary(write_row(rollout, "run"))


def reread(rows: list[Summary]) -> Ledger:
    """What the next run on the same output knows."""
    ledger = Ledger()
    for row in rows:
        ledger.add(row)
    return ledger


def test_repeats_follow_each_other_in_input_order():
    plan = Plan(tasks("a", "b"), Ledger(), repeats=lambda _: 2)
    assert [(job.slot.task_index, job.slot.rollout_index) for job in plan] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_repeats_may_differ_by_agent():
    planned = [Planned("one", rm.Task.of("a")), Planned("two", rm.Task.of("a"))]
    plan = Plan(planned, Ledger(), repeats={"one": 1, "two": 3}.__getitem__)
    assert [job.slot.agent for job in plan] == ["one", "two", "two", "two"]


async def test_what_the_output_holds_is_not_planned_again():
    jobs = list(Plan(tasks("a", "b", "c"), Ledger(), repeats=lambda _: 2))
    ledger = Ledger()
    for job in jobs[1:4]:
        ledger.add(await played(job))
    again = Plan(tasks("a", "b", "c"), ledger, repeats=lambda _: 2)
    assert again.held() == 3
    assert [job.slot for job in again] == [jobs[0].slot, jobs[4].slot, jobs[5].slot]


async def test_any_subset_superset_or_order_of_the_input_continues_with_the_same_indices():
    texts = [f"task {number % 7}" for number in range(20)]  # some stand in the input several times
    whole = [job.slot for job in Plan(tasks(*texts), Ledger(), repeats=lambda _: 2)]
    for seed in range(20):
        order = random.Random(seed)
        found, rows = {}, []
        for _ in range(4):
            ledger = reread(rows)
            for job in Plan(tasks(*order.sample(texts, order.randint(1, 20))), ledger, repeats=lambda _: 2):
                if order.random() < 0.5:
                    rows.append(await played(job))
                    found[job.slot.key] = job.slot
        for job in Plan(tasks(*texts), reread(rows), repeats=lambda _: 2):
            found[job.slot.key] = job.slot
        assert set(found) == {slot.key for slot in whole}
        places = [(slot.task_index, slot.rollout_index) for slot in found.values()]
        assert len(set(places)) == len(places) == 40
        assert len({(slot.task, slot.task_index) for slot in found.values()}) == 7


def test_overrides_reach_the_job_and_not_the_slot():
    plain, hot = (
        next(iter(Plan(tasks("a"), Ledger(), overrides=overrides))) for overrides in ({}, {"temperature": 0.9})
    )
    assert plain.slot == hot.slot
    assert "temperature" in hot.task.params


def test_a_row_keeps_the_index_that_it_brings():
    row = {"responses_create_params": {"input": "a"}, "_ng_task_index": 12}
    job = next(iter(Plan([Planned("agent", read_task(encode(row), rm.Task))], Ledger())))
    assert job.slot.task_index == 12


def test_planning_is_lazy():
    def endless():
        number = 0
        while True:
            yield Planned("agent", rm.Task.of(str(number)))
            number += 1

    assert next(iter(Plan(endless(), Ledger()))).slot.task_index == 0
