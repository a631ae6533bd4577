import random

import pytest
from tests.collection.parts import FAILED, Clock, Growing, Rows, entry, hold, numbered, tasks

import rollmill as rm
from rollmill.collection.plan import LOOK_AHEAD, Feed, Plan
from rollmill.collection.source import Player, RowFile
from rollmill.collection.stretch import Planned, Stretch
from rollmill.store.index import Index
from rollmill.store.ledger import Ledger
from rollmill.types import decode, read_task


@pytest.fixture
def index():
    index = Index(None)
    yield index
    index.close()


def plan(index, rows, *, retry_failed=False, repeats=1, **options) -> Plan:
    source = Rows(rows) if isinstance(rows, list) else rows
    by_agent = repeats if callable(repeats) else lambda _: repeats
    return Plan(source, Ledger(index, retry_failed=retry_failed), repeats=by_agent, **options)


def slots(jobs) -> list[rm.Slot]:
    return [job.slot for job in jobs]


def test_repeats_follow_each_other_in_input_order(index):
    jobs = plan(index, tasks("a", "b"), repeats=2)
    assert [(slot.task_index, slot.rollout_index) for slot in slots(jobs)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_repeats_may_differ_by_agent(index):
    rows = [*tasks("a", agent="one"), *tasks("a", agent="two")]
    assert [slot.agent for slot in slots(plan(index, rows, repeats={"one": 1, "two": 3}.__getitem__))] == [
        *("one", "two", "two", "two")
    ]


def test_what_the_output_holds_is_not_planned_again(index):
    first = slots(plan(index, tasks("a", "b", "c"), repeats=2))
    hold(index, *(entry(1.0, slot) for slot in first[1:4]))
    again = plan(index, tasks("a", "b", "c"), repeats=2)
    assert slots(again) == [first[0], first[4], first[5]]
    assert (again.tasks, again.planned, again.held, again.held_failed) == (3, 6, 3, 0)


def test_a_slot_that_failed_for_good_is_done_until_it_is_asked_for_again(index):
    first = slots(plan(index, tasks("a", "b")))
    hold(index, entry(1.0, first[0]), entry(slot=first[1], failure=FAILED))
    content = plan(index, tasks("a", "b"))
    assert slots(content) == []
    assert (content.held, content.held_failed) == (2, 1)
    assert slots(plan(index, tasks("a", "b"), retry_failed=True)) == [first[1]]


def test_any_subset_superset_or_order_of_the_input_continues_with_the_same_indices():
    texts = [f"task {number % 7}" for number in range(20)]  # some stand in the input several times
    for seed in range(20):
        order, index = random.Random(seed), Index(None)
        keys = {slot.key for slot in slots(plan(Index(None), tasks(*texts), repeats=2))}
        found = {}
        for _ in range(4):
            for slot in slots(plan(index, tasks(*order.sample(texts, order.randint(1, 20))), repeats=2)):
                if order.random() < 0.5:
                    hold(index, entry(1.0, slot))
                    assert found.setdefault(slot.key, slot) == slot, "played twice"
        for slot in slots(plan(index, tasks(*texts), repeats=2)):
            assert slot.key not in found
            found[slot.key] = slot
        assert set(found) == keys
        places = [(slot.task_index, slot.rollout_index) for slot in found.values()]
        assert len(set(places)) == len(places) == 40
        assert len({(slot.task, slot.task_index) for slot in found.values()}) == 7
        index.close()


def test_more_repeats_ask_only_for_the_difference(index):
    hold(index, *(entry(1.0, slot) for slot in slots(plan(index, tasks("a", "b"), repeats=2))))
    more = slots(plan(index, tasks("a", "b"), repeats=3))
    assert [(slot.task_index, slot.repeat, slot.rollout_index) for slot in more] == [(0, 2, 2), (1, 2, 2)]


def test_overrides_reach_the_job_and_not_the_slot():
    plain, hot = (
        next(iter(plan(Index(None), tasks("a"), overrides=overrides))) for overrides in ({}, {"temperature": 0.9})
    )
    assert plain.slot == hot.slot
    assert "temperature" not in plain.task.params
    assert decode(hot.task.params["temperature"]) == 0.9


def test_every_slot_may_be_asked_with_a_seed_of_its_own_that_never_changes(index):
    def seeds(number, rows, index):
        jobs = plan(index, rows, repeats=3, seed=number)
        return {job.slot.key: decode(job.task.params["seed"]) for job in jobs}

    first = seeds(1, numbered(50), index)
    assert len(set(first.values())) == 150
    assert all(0 <= seed < 2**31 for seed in first.values())
    # Another order of the input, and an output of its own.
    assert seeds(1, numbered(50)[::-1], Index(None)) == first
    assert set(seeds(2, numbered(50), Index(None)).values()).isdisjoint(first.values())


def test_a_row_keeps_the_index_that_it_brings(index):
    (slot,) = slots(plan(index, [Planned("agent", rm.Task.of("a"), task_index=12)]))
    assert slot.task_index == 12


def test_agents_are_met_before_their_first_row_and_once(index):
    met = []
    rows = [*tasks("a", "b", agent="one"), *tasks("a", agent="two"), *tasks("c", agent="one")]
    jobs = iter(plan(index, rows, meet=met.append))
    assert met == []
    next(jobs)
    assert met == ["one", "two"]
    assert len(list(jobs)) == 3
    assert met == ["one", "two"]


def test_an_agent_that_may_not_play_stops_the_plan_before_its_rows(index):
    def refuse(agent):
        raise rm.ConfigError(f"{agent} is of another experiment")

    with pytest.raises(rm.ConfigError, match="one is of another experiment"):
        next(iter(plan(index, tasks("a", agent="one"), meet=refuse)))


def test_planning_is_lazy(index):
    class Endless(Rows):
        def stretches(self):
            number = 0
            while True:
                yield Stretch("endless", number, tasks(f"task {number}"), lambda planned: planned)
                number += 1

    assert next(iter(plan(index, Endless([])))).slot.task_index == 0


ROW = '{"responses_create_params": {"input": "%s"}}\n'


class Counting:
    """Who plays a row, and how often that was asked: once for each row that is parsed."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, ref):
        self.asked += 1
        return Player("agent", rm.Task)


def test_an_input_that_has_not_changed_is_not_parsed_again(index, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(ROW % number for number in range(300)))
    route = Counting()
    first = slots(plan(index, RowFile(path, route)))
    assert route.asked == 300
    hold(index, *(entry(1.0, slot) for slot in first[:295]))
    route.asked = 0
    met = []
    again = plan(index, RowFile(path, route), meet=met.append)
    assert slots(again) == first[295:]
    assert route.asked == 5
    assert (again.planned, again.held) == (300, 295)
    assert met == ["agent"]


def test_rows_that_have_changed_are_parsed_again(index, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(ROW % number for number in range(300)))
    hold(index, *(entry(1.0, slot) for slot in slots(plan(index, RowFile(path, Counting())))))
    path.write_text("".join(ROW % (number if number != 200 else "other") for number in range(300)))
    again = slots(plan(index, RowFile(path, Counting())))
    assert [slot.task for slot in again] == [read_task((ROW % "other").encode(), rm.Task).identity]


def test_bad_rows_are_passed_over_where_that_is_wanted(index, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(ROW % "a" + "{oops\n" + ROW % "b")
    heard = []
    jobs = plan(index, RowFile(path, Counting()), skip=heard.append)
    assert len(slots(jobs)) == 2
    assert jobs.planned == 2
    assert [str(error).partition(": not JSON")[0] for error in heard] == [f"{path}, line 2"]
    with pytest.raises(rm.ConfigError, match="line 2: not JSON"):
        slots(plan(Index(None), RowFile(path, Counting())))


# The feed.


def read_all(feed: Feed) -> None:
    while not feed.exhausted:
        feed.read()


def test_agents_take_turns(index):
    feed = Feed(plan(index, [*numbered(3, "one"), *numbered(2, "two"), *numbered(1, "three")]))
    read_all(feed)
    taken = []
    while (job := feed.take()) is not None:
        taken.append(job.slot.agent)
    assert taken == ["one", "two", "three", "one", "two", "one"]
    assert feed.size == 0


def test_an_agent_without_room_does_not_hold_up_the_others(index):
    feed = Feed(plan(index, [*numbered(3, "slow"), *numbered(3, "quick")]))
    read_all(feed)
    taken = [feed.take(lambda agent: agent != "slow") for _ in range(4)]
    assert [job and job.slot.agent for job in taken] == ["quick", "quick", "quick", None]
    assert feed.size == 3


def test_a_feed_reads_no_further_than_it_has_to(index):
    feed = Feed(plan(index, numbered(5 * LOOK_AHEAD)))
    for _ in range(100):
        feed.read()
    assert LOOK_AHEAD <= feed.size < 2 * LOOK_AHEAD
    assert not feed.exhausted


def test_a_feed_goes_on_past_rows_that_have_ended(index):
    rows = numbered(1000)
    hold(index, *(entry(1.0, slot) for slot in slots(plan(index, rows))[:999]))
    feed = Feed(plan(index, rows))
    read_all(feed)
    assert feed.take().slot.task == rows[999].task.identity
    assert feed.take() is None


async def test_a_feed_that_grows_knows_how_long_it_has_waited(index):
    clock, source = Clock(), Growing()
    feed = Feed(plan(index, source), source, clock=clock)
    assert (feed.grows, feed.waits, feed.waited_s) == (True, False, None)
    feed.read()
    clock.now = 5
    feed.read()
    assert (feed.waits, feed.waited_s, feed.size, feed.exhausted) == (True, 5, 0, False)
    source.come(tasks("a"))
    await feed.arrival()
    feed.read()
    assert (feed.waits, feed.size) == (False, 1)
    feed.read()
    # Somebody is to take what is there.
    feed.settle()
    assert not feed.exhausted
    feed.take()
    feed.settle()
    assert (feed.exhausted, feed.waits, feed.waited_s) == (True, False, None)


def test_a_feed_that_is_finished_reads_to_its_end(index):
    source = Growing()
    feed = Feed(plan(index, source), source)
    feed.read()
    source.come(tasks("a"), tasks("b"))
    feed.finish()
    read_all(feed)
    assert feed.size == 2


def test_a_plan_that_may_grow_gives_what_is_there(index):
    source = Growing()
    source.come(tasks("a"), tasks("b"))
    assert len(slots(plan(index, source))) == 2
