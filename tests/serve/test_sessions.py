"""Sessions: one world for each client, and none for ever."""

import asyncio

import pytest

import rollmill as rm
from rollmill.serve.http import Problem
from rollmill.serve.sessions import Sessions

TASK = rm.Task.of("Play.")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Closed(list[rm.Environment]):
    """The worlds that were closed, in their order."""

    async def __call__(self, world: rm.Environment) -> None:
        await asyncio.sleep(0)
        self.append(world)


@pytest.fixture
def closed() -> Closed:
    return Closed()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(closed: Closed, clock: Clock) -> Sessions:
    return Sessions(closed, idle_s=60, most=3, clock=clock)


def world() -> rm.Environment:
    return rm.Environment(TASK)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_ids_are_long_and_nobody_elses(sessions):
    ids = {sessions.begin(world()) for _ in range(3)}
    assert len(ids) == 3
    assert min(map(len, ids)) >= 32
    await sessions.close()


async def test_a_place_begins_every_id(closed):
    sessions = Sessions(closed, place="3.")
    assert sessions.begin(world()).startswith("3.")
    await sessions.close()


async def test_a_session_that_nobody_uses_ends_with_its_lease(sessions, closed, clock):
    old, young = sessions.begin(one := world()), None
    clock.now += 40
    young = sessions.begin(world())
    clock.now += 20
    sessions.sweep()
    await settled()
    assert (old in sessions, young in sessions) == (False, True)
    assert closed == [one]
    await sessions.close()


async def test_using_it_renews_its_lease_and_what_is_in_use_never_ends(sessions, closed, clock):
    id = sessions.begin(world())
    with sessions.entered(id):
        clock.now += 1000
        sessions.sweep()
        assert id in sessions
    clock.now += 59
    sessions.sweep()
    assert id in sessions
    clock.now += 1
    sessions.sweep()
    await settled()
    assert len(closed) == 1


async def test_a_session_that_ends_while_it_is_busy_is_closed_when_nobody_is_inside(sessions, closed):
    id = sessions.begin(world())
    with sessions.entered(id):
        with sessions.entered(id):
            sessions.end(id)
            await settled()
            assert closed == []
        await settled()
        assert closed == []
    await settled()
    assert len(closed) == 1
    assert len(sessions) == 0


async def test_ending_twice_closes_once(sessions, closed):
    id = sessions.begin(world())
    with sessions.entered(id):
        sessions.end(id)
        sessions.end(id)
    sessions.end(id)
    await sessions.close()
    assert len(closed) == 1


async def test_a_new_task_of_the_same_client_replaces_its_world(sessions, closed):
    id = sessions.begin(first := world())
    assert sessions.begin(second := world(), id) == id
    await settled()
    assert closed == [first]
    with sessions.entered(id) as session:
        assert session.world is second
    await sessions.close()


async def test_an_id_that_the_service_never_gave_is_not_taken_over(sessions):
    assert sessions.begin(world(), "chosen-by-the-client") != "chosen-by-the-client"
    await sessions.close()


async def test_all_end_with_the_service_also_those_in_use(sessions, closed):
    ids = [sessions.begin(world()) for _ in range(2)]
    with sessions.entered(ids[0]):
        await sessions.close()
        assert len(closed) == 2
    await settled()
    assert len(closed) == 2


async def test_no_more_than_there_may_be_counting_those_that_are_being_built(sessions):
    sessions.begin(world())
    with sessions.room(), sessions.room(), pytest.raises(Problem, match="3 sessions are open") as full, sessions.room():
        pass
    assert full.value.status == 503
    assert ("Retry-After", "1") in full.value.headers
    with sessions.room():
        pass
    await sessions.close()


async def test_a_world_that_was_not_built_leaves_its_place(sessions):
    for _ in range(9):
        with pytest.raises(ZeroDivisionError), sessions.room():
            raise ZeroDivisionError
    with sessions.room():
        pass


async def test_no_session_and_one_that_is_over_are_told_apart(sessions):
    with pytest.raises(Problem) as none, sessions.entered(""):
        pass
    with pytest.raises(Problem) as over, sessions.entered("long-gone"):
        pass
    assert (none.value.status, over.value.status) == (409, 410)


async def test_the_watch_ends_what_is_over(closed):
    sessions = Sessions(closed, idle_s=0.01)
    sessions.begin(world())
    watching = asyncio.create_task(sessions.watch())
    while not closed:
        await asyncio.sleep(0.01)
    watching.cancel()
    assert len(sessions) == 0
