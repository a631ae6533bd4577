import asyncio

import pytest

from rollmill.deadline import Watch


async def test_what_is_overdue_ends_with_a_timeout():
    watch = Watch()
    with pytest.raises(TimeoutError), watch.within(0.01) as deadline:
        await asyncio.sleep(30)
    assert deadline.expired
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_is_in_time_is_left_alone():
    watch = Watch()
    with watch.within(30) as deadline:
        await asyncio.sleep(0)
    assert not deadline.expired


async def test_each_of_many_has_its_own():
    watch = Watch()

    async def sleep(within: float, seconds: float) -> str:
        try:
            with watch.within(within):
                await asyncio.sleep(seconds)
        except TimeoutError:
            return "late"
        return "done"

    asked = [(30, 0.001), (0.02, 30), (0.01, 30), (30, 0.03), (0.05, 30), (30, 0)]
    assert await asyncio.gather(*(sleep(*one) for one in asked)) == ["done", "late", "late", "done", "late", "done"]


async def test_a_longer_one_is_not_forgotten_after_a_shorter_one():
    watch = Watch()

    async def work() -> None:
        with watch.within(0.05):
            with watch.within(0.02):
                await asyncio.sleep(0)
            await asyncio.sleep(30)

    with pytest.raises(TimeoutError):
        await work()


async def test_the_outer_one_passes_through_the_inner_one():
    watch = Watch()
    inner = watch.within(30)

    async def work() -> None:
        with watch.within(0.01), inner:
            await asyncio.sleep(30)

    with pytest.raises(TimeoutError):
        await work()
    assert not inner.expired


async def test_a_timeout_of_somebody_elses_is_not_its_own():
    with pytest.raises(TimeoutError, match="theirs"), Watch().within(30) as deadline:
        raise TimeoutError("theirs")
    assert not deadline.expired


async def test_a_cancellation_from_outside_passes():
    async def work() -> None:
        with Watch().within(30):
            await asyncio.sleep(30)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_left_running():
    watch = Watch()
    loop = asyncio.get_running_loop()
    with watch.within(3600):
        pass
    handles = [handle for handle in getattr(loop, "_scheduled", []) if not handle.cancelled()]
    assert not [handle for handle in handles if handle.when() > loop.time() + 1000]
