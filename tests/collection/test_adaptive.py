"""The limit is driven by hand: so many calls of one round are sent, and what became of each is told."""

import asyncio
import random
import statistics

import pytest
from tests.collection.parts import Clock
from tests.collection.simulated import Failing, Queueing, Refusing, Server, clock, simulate

import rollmill as rm
from rollmill.collection.adaptive import CUT, Adaptive
from rollmill.collection.calls import Calls, Persistent
from rollmill.errors import ModelError, RolloutError
from rollmill.model import Conversation

TOO_MANY = rm.Failure("model", "rate_limit", "slow down", retryable=True)
BUSY = rm.Failure("model", "overload", "busy", retryable=True)


def play_round(throttle: Adaptive, time: Clock, *, calls: int | None = None, saturated=True, failures=()) -> None:
    """As many calls as there may be, a second each; the first of them fail."""
    sent = [throttle.sent(saturated=saturated) for _ in range(throttle.limit if calls is None else calls)]
    time.now += 1.0
    for place, call in enumerate(sent):
        if place < len(failures):
            throttle.failed(call, failures[place])
        else:
            throttle.succeeded(call)


def test_it_doubles_every_round_until_it_is_told(time):
    throttle = Adaptive(start=100, clock=time)
    limits = []
    for _ in range(4):
        play_round(throttle, time)
        limits.append(throttle.limit)
    assert limits == [200, 400, 800, 1600]


def test_it_grows_only_where_the_limit_was_what_held_calls_back(time):
    throttle = Adaptive(start=100, clock=time)
    for _ in range(10):
        play_round(throttle, time, calls=20, saturated=False)
    assert throttle.limit == 100


def test_it_stays_between_its_bounds(time):
    throttle = Adaptive(start=16, least=4, most=40, clock=time)
    for _ in range(10):
        play_round(throttle, time)
    assert throttle.limit == 40
    for _ in range(100):
        play_round(throttle, time, failures=[TOO_MANY] * 40)
    assert throttle.limit == 4


def test_a_refusal_cuts_once_however_many_were_refused(time):
    throttle = Adaptive(start=100, clock=time)
    play_round(throttle, time, failures=[TOO_MANY] * 50)
    assert throttle.limit == int(100 * CUT)
    assert throttle.cuts == 1


def test_what_was_sent_before_a_cut_or_while_it_cools_is_no_evidence(time):
    throttle = Adaptive(start=100, clock=time)
    early = [throttle.sent(saturated=True) for _ in range(50)]
    refused = throttle.sent(saturated=True)
    time.now += 1.0
    throttle.failed(refused, TOO_MANY)
    cooling = [throttle.sent(saturated=True) for _ in range(50)]
    time.now += 0.5
    for call in early:
        throttle.succeeded(call)
    time.now += 5.0
    for call in cooling:
        throttle.succeeded(call)
    assert throttle.limit == 70
    # And news of the old limit is no second cut.
    throttle.failed(early[0], TOO_MANY)
    assert (throttle.limit, throttle.cuts) == (70, 1)
    play_round(throttle, time)
    assert throttle.limit > 70


def test_after_a_cut_it_comes_back_soon_and_then_goes_carefully(time):
    throttle = Adaptive(start=100, clock=time)
    play_round(throttle, time, failures=[TOO_MANY])
    limits = []
    for _ in range(12):
        play_round(throttle, time)
        limits.append(throttle.limit)
    assert 90 <= limits[5] <= 95
    assert limits[-1] <= 97


@pytest.mark.parametrize("failure", [BUSY, rm.Failure("model", "timeout", "late", retryable=True)])
def test_a_stray_fault_is_no_overload_and_many_are(time, failure):
    throttle = Adaptive(start=100, clock=time)
    play_round(throttle, time, failures=[failure] * 5)
    assert throttle.cuts == 0
    play_round(throttle, time, failures=[failure] * 100)
    assert throttle.cuts == 1


def test_faults_of_the_request_or_the_way_say_nothing_of_the_limit(time):
    throttle = Adaptive(start=100, clock=time)
    for kind in ("caller", "denied", "malformed", "transport"):
        play_round(throttle, time, failures=[rm.Failure("model", kind, "x")] * 100)
    assert throttle.cuts == 0


# With a server, and more callers than it serves.


async def load(server: Server, seconds: float, *, callers: int) -> tuple[Calls, list[int], int]:
    """What the limit was each second of the second half, and how many were answered in it."""
    throttle = Adaptive(clock=clock)
    calls = Calls("simulated", throttle=throttle, clock=clock)
    model = Persistent(server, calls)

    async def caller() -> None:
        while clock() < seconds:
            try:
                await model.reply(Conversation(()))
            except RolloutError:
                continue

    tasks = [asyncio.create_task(caller()) for _ in range(callers)]
    await asyncio.sleep(seconds / 2)
    before, limits = server.ended["answered"], []
    while clock() < seconds:
        limits.append(throttle.limit)
        await asyncio.sleep(1)
    answered = server.ended["answered"] - before
    await asyncio.gather(*tasks)
    assert (throttle.in_flight, throttle.waiting) == (0, 0)
    return calls, limits, answered


@pytest.mark.parametrize(
    "make",
    [
        Refusing,
        lambda capacity, latency_s: Refusing(capacity, latency_s, kind="overload"),
        Queueing,
    ],
    ids=["429", "503", "queue"],
)
@pytest.mark.parametrize(("capacity", "latency_s"), [(20, 1.0), (100, 1.0), (150, 4.0)])
def test_it_settles_where_the_server_is_busy_and_not_beyond(make, capacity, latency_s):
    random.seed(1)
    seconds = 600 * latency_s
    server = make(capacity, latency_s)
    calls, limits, answered = simulate(lambda: load(server, seconds, callers=4 * capacity))
    assert 0.6 * capacity <= statistics.median(limits) <= 1.5 * capacity
    assert 0.6 * capacity <= statistics.mean(limits) <= 1.5 * capacity
    assert answered >= 0.9 * capacity / latency_s * seconds / 2
    assert sum(calls.retries.values()) <= 0.2 * server.ended["answered"]


def test_a_server_that_serves_all_is_given_all():
    server = Server()
    _, _, answered = simulate(lambda: load(server, 100, callers=500))
    assert server.most == 500
    assert answered >= 0.95 * 500 * 50


@pytest.mark.parametrize(("kind", "share"), [("overload", 0.05), ("overload", 0.3), ("rate_limit", 0.2)])
def test_faults_that_fewer_calls_do_not_cure_do_not_starve_the_run(kind, share):
    chance = random.Random(1)
    server = Failing(lambda at, number: ModelError(kind, "x") if chance.random() < share else None, 1.0)
    random.seed(1)
    calls, limits, _ = simulate(lambda: load(server, 400, callers=100))
    assert statistics.median(limits) >= 40
    assert sum(calls.retries.values()) <= 1.2 * server.ended["answered"]


def test_a_server_that_has_become_larger_is_found_out():
    async def main() -> list[int]:
        server = Refusing(20)

        async def grow() -> None:
            await asyncio.sleep(200)
            server.capacity = 100

        growing = asyncio.create_task(grow())
        _, limits, _ = await load(server, 1200, callers=300)
        await growing
        return limits

    assert statistics.median(simulate(main)) >= 60
