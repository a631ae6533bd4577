import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.collection.simulated import Failing, Server, clock, simulate

from rollmill.collection.adaptive import Adaptive
from rollmill.collection.calls import BUSY_S, Calls, Persistent
from rollmill.collection.rates import Rates
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.throttle import Fixed
from rollmill.errors import ConfigError, ModelError, OutageError, RolloutError
from rollmill.model import Conversation
from rollmill.profiling.spans import Spans

ASKED = Conversation(())


def calls_of(server: Server, **options: Any) -> tuple[Persistent, Calls]:
    calls = Calls(server.name, clock=clock, **options)
    return Persistent(server, calls), calls


async def ends(model: Persistent) -> str:
    """How one call ended, in a word."""
    try:
        reply = await model.reply(ASKED)
    except RolloutError as error:
        return error.failure.kind
    except (ConfigError, OutageError) as error:
        return type(error).__name__
    return reply.text


async def run(model: Persistent, *, callers: int, seconds: float) -> list[str]:
    """Callers that ask again and again, until the time is over or the run is stopped."""
    found: list[str] = []

    async def caller() -> None:
        while clock() < seconds:
            found.append(await ends(model))
            if found[-1].endswith("Error"):
                return

    await asyncio.gather(*(caller() for _ in range(callers)))
    return found


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test in simulated time; its chance is the same every time."""

    def runs() -> None:
        random.seed(1)
        simulate(test)

    runs.__name__ = test.__name__
    return runs


def first(count: int, error: ModelError) -> Callable[[float, int], ModelError | None]:
    return lambda at, number: error if number <= count else None


# One call.


@simulated
async def test_a_call_that_fails_is_made_again_where_it_failed():
    model, calls = calls_of(server := Failing(first(2, ModelError("overload", "busy"))))
    assert await ends(model) == "yes"
    assert len(server.asked) == 3
    assert calls.retries == {"overload": 2}
    assert 1.5 <= calls.waited_s["backoff"] <= 3.0


@simulated
async def test_a_profile_tells_waiting_from_answering():
    spans = Spans()
    server = Failing(first(1, ModelError("overload", "busy", retry_after_s=7)), latency_s=2.0)
    rates = Rates(requests_per_minute=1, clock=clock)
    model, calls = calls_of(server, throttle=Fixed(1, clock=clock), rates=rates, spans=spans)
    await asyncio.gather(ends(model), ends(model))
    asked, queue = spans.stages["model"], spans.stages["queue"]
    # Two answers, and a refusal that came after a hundredth of a second.
    assert (asked["simulated"].count, asked["simulated"].total_s) == (3, 4.01)
    assert queue["permit"].count == 3
    assert queue.keys() == {"permit", "rate", "pause", "backoff"}
    assert {why: one.total_s for why, one in queue.items()} == pytest.approx(calls.waited_s)


@simulated
async def test_it_is_tried_so_often_and_then_its_rollout_has_failed_for_good():
    server = Failing(lambda at, number: ModelError("overload", "busy") if number != 1 else None)
    model, _ = calls_of(server, retry=RetryPolicy(attempts=3))
    assert await ends(model) == "yes"
    with pytest.raises(RolloutError, match="busy") as failed:
        await model.reply(ASKED)
    assert not failed.value.failure.retryable
    assert len(server.asked) == 1 + 3


@simulated
async def test_what_is_not_a_fault_of_the_call_passes_and_leaves_its_permit():
    class Broken(Server):
        async def _serve(self) -> None:
            raise ZeroDivisionError

    throttle = Fixed(1)
    model, _ = calls_of(Broken(), throttle=throttle)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await model.reply(ASKED)
    assert throttle.in_flight == 0


@simulated
async def test_a_request_that_alone_is_wrong_is_not_made_again():
    server = Failing(lambda at, number: ModelError("caller", "too long") if number == 2 else None)
    model, _ = calls_of(server)
    assert [await ends(model) for _ in range(3)] == ["yes", "caller", "yes"]
    assert len(server.asked) == 3


@simulated
async def test_no_permit_is_held_while_a_call_waits_to_be_made_again():
    throttle = Fixed(1)
    model, _ = calls_of(Failing(first(1, ModelError("transport", "reset"))), throttle=throttle)
    failing = asyncio.create_task(ends(model))
    await asyncio.sleep(0.2)
    assert throttle.in_flight == 0
    assert await ends(model) == "yes"
    assert not failing.done()
    assert await failing == "yes"


@simulated
async def test_a_call_that_is_cancelled_anywhere_leaves_nothing_behind():
    chance = random.Random(1)
    server = Failing(lambda at, number: ModelError("overload", "x") if chance.random() < 0.3 else None)
    throttle = Adaptive(start=4, most=4, clock=clock)
    model, calls = calls_of(server, throttle=throttle, rates=Rates(600, 100_000, clock=clock))
    tasks = [asyncio.create_task(ends(model)) for _ in range(200)]
    while not all(task.done() for task in tasks):
        chance.choice(tasks).cancel()
        await asyncio.sleep(chance.random() / 10)
    assert sum(task.cancelled() for task in tasks) > 50
    assert (throttle.in_flight, throttle.waiting, server.in_flight, calls.pressure().calls) == (0, 0, 0, 0)


# Manners.


@simulated
async def test_a_retry_after_of_one_call_holds_all_back():
    server = Failing(lambda at, number: ModelError("rate_limit", "x", retry_after_s=30.0) if number == 50 else None)
    model, calls = calls_of(server, throttle=Fixed(8))
    running = asyncio.create_task(run(model, callers=20, seconds=60))
    await asyncio.sleep(10)
    told = server.asked[49] + 0.01
    assert "asked for a pause" in calls.paused
    assert "asked for a pause" in calls.pressure().paused
    assert set(await running) == {"yes"}
    # What was under way then had been sent before.
    assert not [at for at in server.asked if told < at < told + 30.0]
    assert [at for at in server.asked if at >= told + 30.0]
    assert calls.paused == ""
    assert calls.waited_s["pause"] > 30


@simulated
async def test_after_a_pause_calls_do_not_come_as_a_wave():
    server = Failing(lambda at, number: ModelError("rate_limit", "x", retry_after_s=30.0) if at < 1 else None)
    model, _ = calls_of(server)
    assert set(await asyncio.gather(*(ends(model) for _ in range(100)))) == {"yes"}
    back = sorted(server.asked)[100:]
    assert back[0] >= 30.0
    assert max(sum(at <= other < at + 0.1 for other in back) for at in back) < 25


@simulated
async def test_retries_are_spread():
    server = Failing(lambda at, number: ModelError("overload", "x") if at < 1 else None)
    model, _ = calls_of(server)
    await asyncio.gather(*(ends(model) for _ in range(30)))
    back = sorted(server.asked)[30:]
    assert max(sum(at <= other < at + 0.05 for other in back) for at in back) < 10


@simulated
async def test_under_a_steady_limit_of_rate_retries_stay_below_what_succeeds():
    tokens, last = 10.0, 0.0

    def refused(at: float, _: int) -> ModelError | None:
        nonlocal tokens, last
        tokens, last = min(10.0, tokens + (at - last) * 10), at
        if tokens < 1:
            return ModelError("rate_limit", "10 a second")
        tokens -= 1
        return None

    for throttle in (None, Fixed(256, clock=clock), Adaptive(clock=clock)):
        tokens, last = 10.0, clock()
        until = clock() + 600
        model, calls = calls_of(server := Failing(refused), throttle=throttle)
        assert set(await run(model, callers=256, seconds=until)) <= {"yes", "rate_limit"}
        assert sum(calls.retries.values()) <= 1.2 * server.ended["answered"], throttle
        assert server.ended["answered"] >= 0.9 * 10 * 600, throttle


@simulated
async def test_requests_a_minute_are_kept():
    model, calls = calls_of(server := Failing(lambda at, number: None), rates=Rates(120, clock=clock))
    await run(model, callers=50, seconds=60)
    assert max(sum(at <= other < at + 60 for other in server.asked) for at in server.asked) <= 122
    assert calls.waited_s["rate"] > 0


@simulated
async def test_tokens_a_minute_are_kept():
    model, _ = calls_of(server := Server(0.1, tokens=500), rates=Rates(None, 60_000, clock=clock))
    await run(model, callers=50, seconds=600)
    assert 500 * len(server.asked) == pytest.approx(60_000 * 10, rel=0.1)


@simulated
async def test_a_call_does_not_wait_for_ever_for_a_model_that_is_busy_for_it_alone():
    class Unfair(Server):
        async def reply(self, conversation):
            if conversation.id == "unlucky":
                self.asked.append(clock())
                raise ModelError("rate_limit", "not you")
            return await super().reply(conversation)

    model, _ = calls_of(Unfair(10.0))
    others = asyncio.create_task(run(model, callers=2, seconds=2 * BUSY_S))
    with pytest.raises(RolloutError, match="not you"):
        await model.reply(Conversation((), id="unlucky"))
    assert BUSY_S < clock() < BUSY_S + 120
    assert set(await others) == {"yes"}


# Faults of everything.


@simulated
async def test_a_refused_key_stops_after_a_few_calls_with_one_clear_line():
    model, calls = calls_of(server := Failing(lambda at, number: ModelError("denied", "401: bad key")))
    assert set(await run(model, callers=4, seconds=600)) == {"ConfigError"}
    assert len(server.asked) <= 8
    assert clock() < 60
    with pytest.raises(ConfigError, match=r"the model 'simulated' refuses every request: 401: bad key"):
        calls.check()


@simulated
async def test_a_refused_key_stops_one_caller_alone_too():
    model, _ = calls_of(server := Failing(lambda at, number: ModelError("denied", "401")))
    assert await ends(model) == "ConfigError"
    assert len(server.asked) == 3


@simulated
async def test_refusals_of_what_some_requests_say_stop_nothing():
    """The first come back at once, while the others are still being answered."""
    server = Failing(lambda at, number: ModelError("denied", "403: moderated") if number % 7 == 0 else None, 30.0)
    model, calls = calls_of(server)
    found = await run(model, callers=64, seconds=300)
    assert set(found) <= {"yes", "denied"}
    assert found.count("yes") > found.count("denied")
    calls.check()


@simulated
async def test_a_key_that_is_withdrawn_stops_the_run_and_fails_no_slot():
    model, _ = calls_of(Failing(lambda at, number: ModelError("denied", "401") if at > 20 else None))
    found = await run(model, callers=16, seconds=600)
    assert set(found) == {"yes", "ConfigError"}
    assert clock() < 60


@simulated
async def test_requests_that_are_all_wrong_stop_a_run_that_never_had_an_answer():
    model, _ = calls_of(server := Failing(lambda at, number: ModelError("caller", "400: no such field")))
    found = await run(model, callers=4, seconds=600)
    assert "ConfigError" in found
    assert len(server.asked) <= 24


@simulated
async def test_wrong_requests_stop_nothing_once_one_was_answered():
    model, calls = calls_of(Failing(lambda at, number: ModelError("caller", "400") if number != 5 else None))
    found = [await ends(model) for _ in range(40)]
    assert found.count("caller") == 39
    calls.check()


@pytest.mark.parametrize("kind", ["transport", "overload", "timeout", "malformed"])
@pytest.mark.parametrize("callers", [1, 3, 200])
def test_a_model_that_is_gone_stops_the_run_after_a_while_and_not_before(kind, callers):
    async def main() -> None:
        server = Failing(lambda at, number: ModelError(kind, "refused") if at > 20 else None)
        model, calls = calls_of(server)
        found = await run(model, callers=callers, seconds=1000)
        assert found[-1] == "OutageError"
        assert 70 <= clock() <= 80
        # Only one who calls alone cannot tell its own fault from everybody's at first.
        assert set(found) == {"yes", "OutageError"} | ({kind} if callers == 1 else set())
        assert found.count(kind) <= 2
        assert sum(calls.retries.values()) <= 1.2 * server.ended["answered"] + 64
        with pytest.raises(OutageError, match=r"'simulated' has succeeded for 5\d s: refused; .*outage_s"):
            calls.check()

    random.seed(1)
    simulate(main)


@simulated
async def test_a_model_that_never_was_there_stops_the_run_within_a_minute():
    model, _ = calls_of(server := Failing(lambda at, number: ModelError("transport", "refused")))
    found = await run(model, callers=64, seconds=1000)
    assert set(found) == {"OutageError"}
    assert 50 <= clock() <= 60
    assert len(server.asked) < 64 + 32 + 20


@simulated
async def test_a_server_that_restarts_is_waited_for_and_everything_goes_on():
    away = (100.0, 400.0)
    server = Failing(lambda at, number: ModelError("transport", "x") if away[0] < at < away[1] else None, 1.0)
    model, calls = calls_of(server, outage_s=600)
    found = await run(model, callers=200, seconds=600)
    assert set(found) == {"yes"}
    # The first to see it is back within a probe; the others follow in a few rounds.
    assert min(at for at in server.asked if at > away[1]) < away[1] + 16
    assert sum(away[1] + 40 < at < away[1] + 41 for at in server.asked) > 150
    assert len([at for at in server.asked if away[0] + 60 < at < away[1]]) < 30
    calls.check()


@simulated
async def test_an_outage_is_not_counted_together_with_the_last():
    """Forty seconds each, a moment of answers between: never fifty without one."""
    server = Failing(lambda at, number: ModelError("transport", "x") if at % 60 < 40 else None, 0.1)
    model, calls = calls_of(server)
    found = await run(model, callers=20, seconds=400)
    assert set(found) == {"yes"}
    calls.check()


@simulated
async def test_calls_that_answer_slowly_are_no_outage_though_others_fail():
    """Two stray faults a minute, while every answer takes ten."""

    def stray(at: float, number: int) -> ModelError | None:
        return ModelError("transport", "reset") if number % 9 == 0 else None

    model, calls = calls_of(Failing(stray, 600.0))
    found = await run(model, callers=64, seconds=3000)
    assert set(found) == {"yes"}
    calls.check()


@simulated
async def test_a_model_that_refuses_everybody_for_its_rate_is_waited_for_and_in_the_end_named():
    model, _ = calls_of(server := Failing(lambda at, number: ModelError("rate_limit", "429", retry_after_s=60.0)))
    found = await run(model, callers=8, seconds=10 * BUSY_S)
    assert set(found) == {"OutageError"}
    assert BUSY_S <= clock() < BUSY_S + 300
    assert len(server.asked) < 8 * 35


@simulated
async def test_a_model_that_asks_for_a_day_stops_the_run_and_fails_no_slot():
    model, calls = calls_of(Failing(lambda at, number: ModelError("rate_limit", "quota", retry_after_s=86_400.0)))
    assert set(await run(model, callers=8, seconds=1000)) == {"OutageError"}
    assert clock() < 60
    with pytest.raises(OutageError, match="asks to wait for 86400 s: quota"):
        calls.check()


@simulated
async def test_one_model_that_is_gone_costs_the_others_nothing():
    judge, judged = calls_of(Failing(lambda at, number: ModelError("transport", "refused")))
    policy, played = calls_of(Failing(lambda at, number: ModelError("overload", "x") if number % 10 == 0 else None))
    found = await asyncio.gather(run(judge, callers=8, seconds=100), run(policy, callers=8, seconds=100))
    assert [set(one) for one in found] == [{"OutageError"}, {"yes"}]
    played.check()
    assert played.retries["overload"] > 100
    with pytest.raises(OutageError):
        judged.check()


# The end.


@simulated
async def test_a_drain_gives_up_what_waits_to_try_again_and_lets_the_rest_end():
    failing = ModelError("rate_limit", "x", retry_after_s=600.0)
    model, calls = calls_of(Failing(lambda at, number: failing if number == 2 else None, 5.0))
    under_way, told = asyncio.create_task(ends(model)), asyncio.create_task(ends(model))
    await asyncio.sleep(1)
    calls.drain()
    assert (await told, clock()) == ("drained", pytest.approx(1, abs=0.1))
    assert (await under_way, clock()) == ("yes", pytest.approx(5, abs=0.1))


@simulated
async def test_a_drain_lets_those_have_their_turn_who_only_wait_for_the_rate():
    model, calls = calls_of(Server(0.1), rates=Rates(60, clock=clock))
    tasks = [asyncio.create_task(ends(model)) for _ in range(5)]
    await asyncio.sleep(0.5)
    calls.drain()
    assert await asyncio.gather(*tasks) == ["yes"] * 5


@simulated
async def test_what_stops_the_run_wakes_everybody():
    server = Failing(lambda at, number: ModelError("denied", "401"))
    model, _ = calls_of(server, throttle=Fixed(4), rates=Rates(60, clock=clock))
    found = await asyncio.gather(*(ends(model) for _ in range(100)))
    assert set(found) == {"ConfigError"}
    assert clock() < 60


@simulated
async def test_the_pressure_says_what_is_in_the_way():
    model, calls = calls_of(server := Server(1.0), throttle=Fixed(3, clock=clock))
    tasks = [asyncio.create_task(ends(model)) for _ in range(5)]
    await asyncio.sleep(0.5)
    pressure = calls.pressure()
    assert (pressure.calls, pressure.limit, pressure.waiting) == (3, 3, 2)
    await asyncio.gather(*tasks)
    assert calls.pressure().permit_s == pytest.approx(2.0, abs=0.1)
    assert len(server.asked) == 5


def test_where_only_rollouts_bound_the_calls_there_is_no_limit_to_show():
    assert Calls("m").pressure().limit is None
