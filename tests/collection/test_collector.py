import asyncio

import pytest

import rollmill as rm
from rollmill.collection.collector import Collector
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.worker import Job
from rollmill.types import Response

AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)


def jobs(count: int):
    task = rm.Task.of("x")
    return (Job(rm.Slot("agent", task.identity, 0, number), task) for number in range(count))


def ended(job: Job, failure: rm.Failure | None = None) -> rm.Rollout:
    reward = None if failure else rm.Reward(1.0)
    return rm.Rollout(job.slot, job.task, Response(()), rm.Stop.DONE, "m", reward, failure, attempt=job.attempt)


class Kept:
    """Records and observes: what a test asks about afterwards."""

    def __init__(self) -> None:
        self.attempts, self.done, self.waits = [], [], []

    async def record(self, rollout):
        self.attempts.append(rollout)

    def ended(self, rollout):
        self.done.append(rollout)

    def retrying(self, rollout, wait_s):
        self.waits.append(wait_s)


class Worker:
    def __init__(self, play=ended) -> None:
        self._play = play
        self.running = self.most = 0

    async def play(self, job):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        result = self._play(job)
        if asyncio.iscoroutine(result):
            result = await result
        self.running -= 1
        return result


def collector(worker, plan, places=4, retry=AT_ONCE, **options):
    kept = Kept()
    return Collector(worker, plan, places=places, recorder=kept, observers=[kept], retry=retry, **options), kept


async def until(true) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0)


async def test_everything_is_played_once_and_never_more_at_once_than_there_are_places():
    worker = Worker()
    one, kept = collector(worker, jobs(50), places=7)
    await one.run()
    assert len(kept.done) == 50
    assert len({rollout.slot.key for rollout in kept.done}) == 50
    assert worker.most <= 7


async def test_the_plan_is_taken_only_as_places_come_free():
    taken = []

    def plan():
        for job in jobs(100):
            taken.append(job)
            yield job

    release = asyncio.Event()

    async def wait(job):
        await release.wait()
        return ended(job)

    one, _ = collector(Worker(wait), plan(), places=5)
    running = asyncio.create_task(one.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(taken) == 5
    release.set()
    await running
    assert len(taken) == 100


async def test_a_retryable_failure_is_tried_again_and_every_attempt_is_recorded():
    flaky = rm.Failure("model", "overload", "busy", retryable=True)
    one, kept = collector(Worker(lambda job: ended(job, flaky if job.attempt < 3 else None)), jobs(4))
    await one.run()
    assert len(kept.done) == 4
    assert all(rollout.reward for rollout in kept.done)
    assert sorted(rollout.attempt for rollout in kept.attempts) == [1] * 4 + [2] * 4 + [3] * 4


async def test_a_failure_for_good_ends_its_slot_and_not_the_run():
    bad = rm.Failure("tool", "error", "a bug")
    one, kept = collector(Worker(lambda job: ended(job, bad if job.slot.repeat == 2 else None)), jobs(5))
    await one.run()
    assert len(kept.done) == 5
    assert [rollout.slot.repeat for rollout in kept.done if rollout.failure] == [2]


async def test_attempts_are_bounded():
    down = rm.Failure("model", "transport", "down", retryable=True)
    one, kept = collector(Worker(lambda job: ended(job, down)), jobs(2))
    await one.run()
    assert len(kept.attempts) == 6
    assert len(kept.done) == 2


async def test_a_model_that_refuses_everything_stops_the_run_with_one_line():
    played = []

    def refuse(job):
        played.append(job)
        return ended(job, rm.Failure("model", "denied", "401: wrong key"))

    one, _ = collector(Worker(refuse), jobs(1000), places=4)
    with pytest.raises(rm.ConfigError, match="401: wrong key"):
        await one.run()
    assert len(played) <= 8


async def test_a_bad_row_lets_what_runs_end_before_it_is_reported():
    def plan():
        yield from jobs(3)
        raise rm.ConfigError("tasks.jsonl, line 4: not JSON")

    async def slow(job):
        await asyncio.sleep(0.01)
        return ended(job)

    one, kept = collector(Worker(slow), plan())
    with pytest.raises(rm.ConfigError, match="line 4"):
        await one.run()
    assert len(kept.done) == 3


async def test_draining_lets_what_runs_end_and_starts_nothing_more():
    release = asyncio.Event()

    async def wait(job):
        await release.wait()
        return ended(job)

    one, kept = collector(Worker(wait), jobs(100), places=3)
    running = asyncio.create_task(one.run())
    for _ in range(20):
        await asyncio.sleep(0)
    one.drain()
    release.set()
    await running
    assert len(kept.done) == 3


async def test_draining_does_not_wait_for_a_retry():
    down = rm.Failure("model", "rate_limit", "later", retryable=True, retry_after_s=3600.0)
    one, kept = collector(Worker(lambda job: ended(job, down)), jobs(3), retry=RetryPolicy())
    running = asyncio.create_task(one.run())
    await until(lambda: len(kept.waits) == 3)
    one.drain()
    await running
    assert kept.done == []
    assert len(kept.attempts) == 3


async def test_a_store_that_fails_stops_the_run_loudly():
    class Full(Kept):
        async def record(self, rollout):
            raise rm.StoreError("disk full")

    one = Collector(Worker(), jobs(10), places=2, recorder=Full())
    with pytest.raises(rm.StoreError, match="disk full"):
        await one.run()


async def test_cancelling_the_run_cancels_what_runs():
    cancelled = []

    async def wait(job):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(job)
            raise

    one, _ = collector(Worker(wait), jobs(10), places=4)
    running = asyncio.create_task(one.run())
    await until(lambda: one.running == 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(cancelled) == 4
