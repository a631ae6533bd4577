import asyncio

import pytest
from tests.collection.parts import FAILED, Growing, Player, Rows, numbered, tasks, until

import rollmill as rm
from rollmill.collection.collector import Collector
from rollmill.collection.limits import Places
from rollmill.collection.plan import Feed, Plan
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.stretch import Stretch, none_yet
from rollmill.collection.worker import Played
from rollmill.errors import OutageError
from rollmill.profiling.spans import Spans
from rollmill.store.index import Index
from rollmill.store.ledger import Ledger
from rollmill.store.schema import Entry

AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)


class Kept:
    """Records and observes: what a test asks about afterwards."""

    def __init__(self) -> None:
        self.rewards, self.failures, self.done, self.waits = [], [], [], []

    async def rewarded(self, entry, row):
        self.rewards.append(entry)

    async def failed(self, entry, response, *, final, task):
        self.failures.append((entry, final))

    broken = False

    async def until_broken(self):
        await asyncio.Event().wait()

    def ended(self, entry):
        self.done.append(entry)

    def retrying(self, entry, wait_s):
        self.waits.append(wait_s)


@pytest.fixture
def collector():
    """Make a collector over so many tasks, or over a source."""
    index = Index(None)

    def make(worker, rows, *, places=4, retry=AT_ONCE, recorder=None, **options):
        kept = Kept()
        source = Rows(numbered(rows)) if isinstance(rows, int) else rows
        options = {"admission": Places(places), "observers": [kept]} | options
        feed = Feed(Plan(source, Ledger(index)), source if isinstance(source, Growing) else None)
        return Collector(worker, feed, recorder=recorder or kept, retry=retry, **options), kept

    yield make
    index.close()


async def test_everything_is_played_once_and_never_more_at_once_than_there_are_places(collector):
    worker = Player()
    one, kept = collector(worker, 700, places=7)
    await one.run()
    assert len(kept.done) == len({entry.slot.key for entry in kept.rewards}) == len(kept.rewards) == 700
    assert worker.most == one.most_running == 7
    assert (one.ended, one.failed, one.running) == (700, 0, 0)


async def test_the_plan_is_taken_only_as_places_come_free(collector):
    release = asyncio.Event()

    async def wait(job):
        await release.wait()

    worker = Player(wait)
    one, _ = collector(worker, 5000, places=5)
    running = asyncio.create_task(one.run())
    await until(lambda: worker.running == 5)
    for _ in range(50):
        await asyncio.sleep(0)
    assert one.running == 5
    assert not one._feed.exhausted
    release.set()
    await running
    assert one.ended == 5000


async def test_a_retryable_failure_is_tried_again_and_every_attempt_is_recorded(collector):
    flaky = rm.Failure("model", "overload", "busy", retryable=True)
    one, kept = collector(Player(lambda job: flaky if job.attempt < 3 else None), 4)
    await one.run()
    assert [entry.attempt for entry in kept.rewards] == [3] * 4
    assert sorted(entry.attempt for entry, _ in kept.failures) == [1] * 4 + [2] * 4
    assert not any(final for _, final in kept.failures)
    assert len(kept.done) == 4
    assert len(kept.waits) == 8


async def test_a_failure_for_good_ends_its_slot_and_not_the_run(collector):
    one, kept = collector(Player(lambda job: FAILED if job.slot.task_index == 2 else None), 5)
    await one.run()
    assert [(entry.slot.task_index, final) for entry, final in kept.failures] == [(2, True)]
    assert (one.ended, one.failed, one.stopped) == (5, 1, "")


async def test_attempts_are_bounded(collector):
    down = rm.Failure("model", "transport", "down", retryable=True)
    one, kept = collector(Player(lambda job: down), 2)
    await one.run()
    assert sorted((entry.attempt, final) for entry, final in kept.failures) == [
        *((attempt, attempt == 3) for attempt in (1, 1, 2, 2, 3, 3))
    ]
    assert one.failed == 2


@pytest.mark.parametrize("error", [rm.ConfigError("401: wrong key"), OutageError("the model is gone")])
async def test_what_is_wrong_for_every_rollout_stops_the_run_with_its_line(collector, error):
    played = []

    async def refuse(job):
        played.append(job)
        raise error

    one, kept = collector(Player(refuse), 1000)
    with pytest.raises(type(error), match=str(error)):
        await one.run()
    assert len(played) <= 8
    assert kept.done == []


async def test_what_runs_beside_a_refusal_ends_and_is_recorded(collector):
    async def refuse_one(job):
        await asyncio.sleep(0.02 if job.slot.task_index else 0)
        if not job.slot.task_index:
            raise rm.ContractError("an agent without an end")

    one, kept = collector(Player(refuse_one), 1000, places=4)
    with pytest.raises(rm.ContractError):
        await one.run()
    assert {entry.slot.task_index for entry in kept.rewards} == {1, 2, 3}


async def test_a_bad_row_lets_what_runs_end_before_it_is_reported(collector):
    class Bad(Rows):
        def stretches(self):
            yield from super().stretches()
            raise rm.ConfigError("tasks.jsonl, line 4: not JSON")

    worker = Player(lambda job: asyncio.sleep(0.01))
    one, kept = collector(worker, Bad(numbered(3)))
    with pytest.raises(rm.ConfigError, match="line 4"):
        await one.run()
    assert 1 <= len(kept.done) <= 3
    assert worker.running == 0


async def test_draining_lets_what_runs_end_and_starts_nothing_more(collector):
    release = asyncio.Event()

    async def wait(job):
        await release.wait()

    worker = Player(wait)
    one, kept = collector(worker, 100, places=3)
    running = asyncio.create_task(one.run())
    await until(lambda: worker.running == 3)
    one.drain()
    release.set()
    await running
    assert len(kept.done) == 3
    assert worker.drained
    assert one.draining
    assert one.stopped == ""


async def test_a_profile_hears_what_a_rollout_waits_for_before_and_after_it_is_played(collector):
    flaky = rm.Failure("model", "overload", "busy", retryable=True)
    spans = Spans()
    one, _ = collector(Player(lambda job: flaky if job.attempt == 1 else None), 3, spans=spans)
    await one.run()
    assert {why: span.count for why, span in spans.stages["queue"].items()} == {"begin": 3, "retry": 3}
    assert spans.stages["store"][""].count == 6


async def test_draining_does_not_wait_for_a_retry(collector):
    down = rm.Failure("model", "rate_limit", "later", retryable=True, retry_after_s=3600.0)
    one, kept = collector(Player(lambda job: down), 3, retry=RetryPolicy())
    running = asyncio.create_task(one.run())
    await until(lambda: len(kept.waits) == 3)
    one.drain()
    await running
    assert kept.done == []
    assert [final for _, final in kept.failures] == [False] * 3


async def test_what_a_worker_gives_back_when_it_is_drained_is_owed(collector):
    drained = rm.Failure("infrastructure", "drained", "the run was stopped before it began")
    one, kept = collector(Player(lambda job: drained), 2)
    await one.run()
    assert [final for _, final in kept.failures] == [False] * 2
    assert (one.ended, kept.done, kept.waits) == (0, [], [])


async def test_a_store_that_fails_stops_the_run_loudly(collector):
    class Full(Kept):
        async def rewarded(self, entry, row):
            raise rm.StoreError("disk full")

    one, _ = collector(Player(), 100, places=2, recorder=Full())
    with pytest.raises(rm.StoreError, match="disk full"):
        await one.run()


async def test_a_store_that_breaks_stops_a_run_whose_rollouts_take_long(collector):
    class Broken(Kept):
        async def until_broken(self):
            raise rm.StoreError("disk full")

    async def wait(job):
        await asyncio.sleep(3600)

    one, _ = collector(Player(wait), 100, places=2, recorder=Broken())
    with pytest.raises(rm.StoreError, match="disk full"):
        await one.run()
    assert one.running == 0


async def test_nothing_is_begun_for_a_store_that_is_broken(collector):
    class Broken(Kept):
        async def rewarded(self, entry, row):
            self.broken = True

    worker = Player()
    one, _ = collector(worker, 100, places=2, recorder=Broken())
    await one.run()
    assert one.ended == worker.by_agent.total() == 2


async def test_cancelling_the_run_cancels_what_runs(collector):
    cancelled = []

    async def wait(job):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(job)
            raise

    one, _ = collector(Player(wait), 10, places=4)
    running = asyncio.create_task(one.run())
    await until(lambda: one.running == 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(cancelled) == 4


async def test_an_agent_that_is_slow_does_not_hold_up_another(collector):
    release = asyncio.Event()

    async def play(job):
        if job.slot.agent == "slow":
            await release.wait()

    class TwoSlow(Places):
        """Of the slow one, two at once."""

        def __init__(self):
            super().__init__(6)
            self.slow = 0

        def room(self, agent):
            return super().room(agent) and (agent != "slow" or self.slow < 2)

        def enter(self, agent):
            super().enter(agent)
            self.slow += agent == "slow"

        def leave(self, agent):
            self.slow -= agent == "slow"
            super().leave(agent)

    rows = Rows([*numbered(100, "slow"), *numbered(100, "quick")])
    one, kept = collector(Player(play), rows, admission=TwoSlow())
    running = asyncio.create_task(one.run())
    await until(lambda: len(kept.done) == 100)
    assert {entry.slot.agent for entry in kept.done} == {"quick"}
    release.set()
    await running
    assert len(kept.done) == 200


async def test_agents_share_the_places_fairly(collector):
    rows = Rows([*numbered(50, "one"), *numbered(50, "two")])
    one, kept = collector(Player(), rows, places=2)
    await one.run()
    first = [entry.slot.agent for entry in kept.done[:40]]
    assert 15 <= first.count("one") <= 25


async def test_so_many_failures_stop_the_run(collector):
    one, kept = collector(Player(lambda job: FAILED if job.slot.task_index % 2 else None), 1000, max_failures=5)
    await one.run()
    assert one.stopped == "6 slots failed, and max_failures is 5"
    assert 6 <= one.failed <= 10
    assert len(kept.done) == one.ended < 100


async def test_such_a_share_of_failures_stops_the_run_once_enough_have_ended(collector):
    one, _ = collector(Player(lambda job: FAILED if job.slot.task_index % 4 == 0 else None), 1000, max_failures=0.2)
    await one.run()
    assert one.stopped.endswith("slots failed, and max_failures is 0.2")
    assert 100 <= one.ended < 120


async def test_failures_below_the_share_do_not_stop_the_run(collector):
    one, _ = collector(Player(lambda job: FAILED if job.slot.task_index % 10 == 0 else None), 500, max_failures=0.2)
    await one.run()
    assert (one.ended, one.failed, one.stopped) == (500, 50, "")


async def test_the_oldest_rollout_is_known(collector):
    release = asyncio.Event()

    async def play(job):
        if job.slot.task_index == 1:
            await release.wait()

    one, _ = collector(Player(play), 50)
    running = asyncio.create_task(one.run())
    await until(lambda: one.ended == 49)
    assert one.oldest.job.slot.task_index == 1
    release.set()
    await running
    assert one.oldest is None


async def test_rollouts_are_delivered_where_a_caller_wants_them(collector):
    given = []
    rollout = object()

    class Keeping(Player):
        async def play(self, job):
            return Played(Entry(slot=job.slot, stop="done", reward=1.0), row=b"{}", rollout=rollout)

    async def take(one):
        given.append(one)

    one, _ = collector(Keeping(), 3, deliver=take)
    await one.run()
    assert given == [rollout] * 3


# An input that grows.


async def test_rows_are_played_as_they_come_until_nobody_wants_more(collector):
    source = Growing()
    one, kept = collector(Player(), source)
    running = asyncio.create_task(one.run())
    for number in range(5):
        await until(lambda: one.waited_s is not None)
        assert one.ended == number
        assert one.follows
        source.come(tasks(f"task {number}"))
        await until(lambda number=number: one.ended == number + 1)
    source.finish()
    source.come()
    await running
    assert len(kept.rewards) == 5


async def test_while_it_waits_for_rows_nothing_spins(collector):
    source = Growing()
    source.come(tasks("a"))
    one, _ = collector(Player(), source)
    running = asyncio.create_task(one.run())
    await until(lambda: one.ended == 1 and one.waited_s is not None)
    looks = source.looks
    for _ in range(200):
        await asyncio.sleep(0)
    assert source.looks == looks
    one.drain()
    await running


async def test_rows_of_one_agent_come_while_the_others_places_are_full(collector):
    release = asyncio.Event()

    async def play(job):
        if job.slot.agent == "slow":
            await release.wait()

    class One(Places):
        """A place for each agent."""

        def __init__(self):
            super().__init__(2)
            self.inside = set()

        def room(self, agent):
            return agent not in self.inside

        def enter(self, agent):
            self.inside.add(agent)

        def leave(self, agent):
            self.inside.discard(agent)
            super().leave(agent)

    source = Growing()
    source.come(numbered(3, "slow"))
    one, kept = collector(Player(play), source, admission=One())
    running = asyncio.create_task(one.run())
    await until(lambda: one.running == 1)
    source.come(numbered(2, "quick"))
    await until(lambda: one.ended == 2)
    assert {entry.slot.agent for entry in kept.rewards} == {"quick"}
    release.set()
    await until(lambda: one.ended == 5)
    one.drain()
    await running


async def test_a_run_ends_when_nothing_has_come_for_so_long_and_all_has_ended(collector):
    release = asyncio.Event()

    async def wait(job):
        await release.wait()

    source = Growing()
    source.come(tasks("a"))
    one, _ = collector(Player(wait), source, idle_s=1e-9)
    running = asyncio.create_task(one.run())
    await until(lambda: one.running == 1)
    for _ in range(10):
        # It looks again and again, and what runs has not ended.
        source.come()
        await asyncio.sleep(0.001)
    assert not running.done()
    release.set()
    await until(lambda: not one.running)
    source.come()
    await running
    assert (one.ended, one.stopped, one.draining) == (1, "", False)


async def test_a_drain_ends_the_waiting(collector):
    source = Growing()
    one, _ = collector(Player(), source)
    running = asyncio.create_task(one.run())
    await until(lambda: one.waited_s is not None)
    one.drain()
    await running


async def test_a_bad_row_that_comes_late_stops_the_run_with_its_line(collector):
    class Late(Growing):
        async def arrival(self):
            await asyncio.sleep(0)

        def stretches(self):
            yield Stretch("rows", 0, tasks("a"), lambda planned: planned)
            yield none_yet()
            raise rm.ConfigError("rows, line 2: no")

    one, kept = collector(Player(), Late())
    with pytest.raises(rm.ConfigError, match="line 2: no"):
        await one.run()
    assert len(kept.rewards) == 1
