import asyncio
import random

import pytest
from tests.collection.simulated import clock, simulate

from rollmill.collection.adaptive import Adaptive
from rollmill.collection.throttle import Fixed


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_no_more_than_the_limit_and_those_who_wait_go_in_order():
    throttle, went = Fixed(2), []

    async def caller(number: int) -> None:
        await throttle.acquire()
        went.append(number)

    callers = [asyncio.create_task(caller(number)) for number in range(5)]
    await turns()
    assert went == [0, 1]
    assert (throttle.in_flight, throttle.waiting) == (2, 3)
    for _ in range(3):
        throttle.release()
    await turns()
    assert went == [0, 1, 2, 3, 4]
    await asyncio.gather(*callers)


async def test_a_permit_that_is_free_costs_no_turn_of_the_loop():
    throttle = Fixed(3)
    for last in (False, False, True):
        with pytest.raises(StopIteration) as taken:
            throttle.acquire().send(None)
        assert taken.value.value is last


async def test_who_comes_late_does_not_overtake_who_waits():
    throttle, went = Fixed(1), []

    async def caller(name: str) -> None:
        await throttle.acquire()
        went.append(name)

    await throttle.acquire()
    early = asyncio.create_task(caller("early"))
    await turns()
    throttle.release()
    # The permit is early's already, although early has not run since.
    late = asyncio.create_task(caller("late"))
    await turns()
    assert went == ["early"]
    throttle.release()
    await asyncio.gather(early, late)


async def test_a_permit_that_comes_with_the_cancellation_goes_to_the_next():
    throttle = Fixed(1)
    await throttle.acquire()
    first, second = (asyncio.create_task(throttle.acquire()) for _ in range(2))
    await turns()
    throttle.release()
    first.cancel()
    await asyncio.wait([first, second], timeout=5)
    assert first.cancelled()
    assert second.done()
    assert (throttle.in_flight, throttle.waiting) == (1, 0)


@pytest.mark.parametrize("seed", range(10))
async def test_no_permit_is_lost_whoever_is_cancelled_when(seed: int):
    chance, throttle = random.Random(seed), Fixed(4)
    working = most = 0

    async def caller() -> None:
        nonlocal working, most
        await throttle.acquire()
        try:
            working += 1
            most = max(most, working)
            await turns(chance.randrange(4))
        finally:
            working -= 1
            throttle.release()

    callers = [asyncio.create_task(caller()) for _ in range(300)]
    while not all(one.done() for one in callers):
        for one in chance.sample(callers, 5):
            one.cancel()
        await turns(chance.randrange(3))
    assert sum(one.cancelled() for one in callers) > 20
    assert most == 4
    assert (throttle.in_flight, throttle.waiting, working) == (0, 0, 0)


def test_a_higher_limit_lets_those_in_who_wait_and_a_lower_one_takes_nothing_away():
    async def main() -> None:
        throttle = Adaptive(start=2, clock=clock)
        callers = [asyncio.create_task(throttle.acquire()) for _ in range(6)]
        await turns()
        assert throttle.in_flight == 2
        call = throttle.sent(saturated=True)
        await asyncio.sleep(1)
        throttle.succeeded(call)
        throttle.release()
        await turns()
        assert (throttle.limit, throttle.in_flight, throttle.waiting) == (3, 3, 2)
        for one in callers:
            one.cancel()

    simulate(main)
