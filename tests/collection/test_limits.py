import asyncio
from contextlib import suppress

import pytest
from tests.collection.simulated import Failing, Refusing, Server, clock, simulate

import rollmill as rm
from rollmill.collection.adaptive import Adaptive
from rollmill.collection.calls import Calls, Persistent
from rollmill.collection.limits import AdaptiveAdmission, Bounded, ByModel, LocalAdmission, Places
from rollmill.collection.throttle import Fixed
from rollmill.errors import ModelError
from rollmill.model import Conversation, Scripted

ASKED = Conversation(())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def enter_all(admission: LocalAdmission, agent: str = "a") -> int:
    """How many may begin."""
    count = 0
    while admission.room(agent):
        admission.enter(agent)
        count += 1
        assert count < 10_000
    return count


def test_there_are_so_many_places():
    places = Places(3)
    assert enter_all(places) == 3
    places.leave("a")
    assert enter_all(places) == 1


@pytest.mark.parametrize("make", [lambda: Places(1), lambda: AdaptiveAdmission(Fixed(1))], ids=["places", "adaptive"])
async def test_a_place_that_comes_free_before_anybody_waits_is_not_missed(make):
    admission = make()
    assert enter_all(admission) == 1
    waiting = asyncio.ensure_future(admission.changed())
    # The one who asks has not begun to wait.
    admission.leave("a")
    await asyncio.wait_for(waiting, 5)
    assert admission.room("a")


def test_as_many_may_begin_as_calls_may_be_in_flight():
    assert enter_all(AdaptiveAdmission(Fixed(7))) == 7
    assert enter_all(AdaptiveAdmission(Fixed(1000), most=50)) == 50


async def test_who_rests_between_its_calls_makes_room_and_takes_it_again():
    admission = AdaptiveAdmission(Fixed(2))
    assert enter_all(admission) == 2
    with admission.present("a", Scripted("yes")) as model:
        assert enter_all(admission) == 0
        changed = asyncio.ensure_future(admission.changed())
        await turns()
        assert not changed.done()
        await model.reply(ASKED)
        await asyncio.wait_for(changed, 5)
        assert admission.resting == 1
        assert enter_all(admission) == 1
    # It has ended, but its place is its own until it leaves.
    assert (admission.running, admission.resting) == (3, 0)
    admission.leave("a")
    assert enter_all(admission) == 0
    admission.leave("a")
    assert enter_all(admission) == 1


async def test_a_rollout_that_fails_or_is_cancelled_leaves_no_rest_behind():
    class Broken(Scripted):
        async def reply(self, conversation):
            raise ModelError("overload", "x")

    admission = AdaptiveAdmission(Fixed(2))
    for model in (Broken(), Server(60.0)):
        with suppress(ModelError, TimeoutError), admission.present("a", model) as present:
            async with asyncio.timeout(0.01):
                await present.reply(ASKED)
    assert admission.resting == 0


def test_nobody_begins_while_a_call_waits_for_its_permit():
    async def main() -> None:
        throttle = Fixed(2, clock=clock)
        admission = AdaptiveAdmission(throttle)
        model = Persistent(Server(1.0), Calls("m", throttle=throttle, clock=clock))
        for _ in range(4):
            admission.enter("a")
        # Three of four rest, so that there would be room; but all call at once.
        admission.resting = 3
        calling = [asyncio.create_task(model.reply(ASKED)) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert throttle.waiting == 1
        assert not admission.room("a")
        await asyncio.gather(*calling)
        assert admission.room("a")

    simulate(main)


def test_an_agent_s_bound_is_kept_beside_the_others():
    bounded = Bounded(Places(5), {"slow": 2})
    assert enter_all(bounded, "slow") == 2
    assert enter_all(bounded, "fast") == 3
    bounded.leave("slow")
    assert enter_all(bounded, "fast") == 1
    assert not bounded.room("slow")


async def test_a_bounded_agent_that_leaves_is_heard_of():
    bounded = Bounded(Places(5), {"slow": 1})
    assert enter_all(bounded, "slow") == 1
    waiting = asyncio.ensure_future(bounded.changed())
    await turns()
    bounded.leave("slow")
    await asyncio.wait_for(waiting, 5)
    assert bounded.room("slow")


async def test_a_model_that_is_full_does_not_hold_up_the_other():
    throttles = {"small": Fixed(1), "large": Fixed(4)}
    admission = ByModel({"a": "small", "b": "large", "c": "large"}, lambda model: AdaptiveAdmission(throttles[model]))
    assert enter_all(admission, "a") == 1
    assert enter_all(admission, "b") == 4
    assert not admission.room("c")
    waiting = asyncio.ensure_future(admission.changed())
    await turns()
    admission.leave("b")
    await asyncio.wait_for(waiting, 5)
    assert admission.room("c")
    assert not admission.room("a")


# Whole rollouts: several calls each, with tools that take time between them.


async def collect(server: Server, *, seconds: float, tools_s: float) -> tuple[AdaptiveAdmission, int, int]:
    """The most that ran at once, and the rollouts that ended."""
    throttle = Adaptive(clock=clock)
    model = Persistent(server, Calls("m", throttle=throttle, clock=clock))
    admission = AdaptiveAdmission(throttle)
    most = ended = 0

    async def rollout() -> None:
        nonlocal ended
        with admission.present("a", model) as present:
            for _ in range(4):
                await present.reply(ASKED)
                await asyncio.sleep(tools_s)
        admission.leave("a")
        ended += 1

    async with asyncio.TaskGroup() as group:
        while clock() < seconds:
            while admission.room("a"):
                admission.enter("a")
                group.create_task(rollout())
                most = max(most, admission.running)
            with suppress(TimeoutError):
                await asyncio.wait_for(admission.changed(), seconds + 1 - clock())
    assert (admission.running, admission.resting, throttle.in_flight, throttle.waiting) == (0, 0, 0, 0)
    return admission, most, ended


@pytest.mark.parametrize("tools_s", [0.0, 0.5, 3.0])
def test_the_model_is_kept_busy_whatever_the_tools_take(tools_s):
    server = Refusing(50)
    _, most, ended = simulate(lambda: collect(server, seconds=600, tools_s=tools_s))
    assert 4 * ended == server.ended["answered"]
    assert server.ended["answered"] >= 0.85 * 50 * 600
    # So many as that takes, and not many more.
    assert most <= 2 * 50 * (1 + tools_s)


@pytest.mark.slow
def test_it_goes_on_after_an_outage():
    server = Failing(lambda at, number: ModelError("transport", "x") if 20 < at < 60 else None, 1.0)
    _, _, ended = simulate(lambda: collect(server, seconds=120, tools_s=0.1))
    assert 4 * ended == server.ended["answered"]
    assert sum(at > 90 for at in server.asked) > 1000


def test_the_records_of_the_package_play_through_it():
    async def main() -> list[str]:
        throttle = Adaptive(clock=clock)
        admission = AdaptiveAdmission(throttle)
        model = Persistent(Scripted("yes"), Calls("m", throttle=throttle, clock=clock))
        admission.enter("a")
        with admission.present("a", model) as present:
            assert present.name == "scripted"
            replies = [await present.reply(Conversation((rm.user("?"),), turn=turn)) for turn in range(3)]
        return [reply.text for reply in replies]

    assert simulate(main) == ["yes"] * 3
