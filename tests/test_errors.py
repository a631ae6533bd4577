"""Where an exception came from is said once, in one line, and survives being sent elsewhere."""

import asyncio
import copy
import pickle
from collections.abc import Iterator

import pytest

from rollmill import errors
from rollmill.errors import (
    CallerError,
    ConfigError,
    ContractError,
    ModelError,
    OutageError,
    RollmillError,
    RolloutError,
    RunError,
    ServiceError,
    StoreError,
    ToolError,
    boundary,
    describe,
    suggestion,
)
from rollmill.types import Failure


def failure_of(error: BaseException) -> Failure:
    """What a boundary makes of an exception that an author raised."""
    with pytest.raises(RolloutError) as caught, boundary("verifier"):
        raise error
    return caught.value.failure


def test_an_ordinary_exception_gets_the_boundary_s_address() -> None:
    failure = failure_of(ValueError("the sum is wrong"))
    assert (failure.where, failure.kind, failure.retryable) == ("verifier", "error", False)
    assert failure.detail.startswith("ValueError: the sum is wrong (test_errors.py:")


def test_the_cause_is_kept() -> None:
    cause = ValueError("the sum is wrong")
    with pytest.raises(RolloutError) as caught, boundary("tool"):
        raise cause
    assert caught.value.__cause__ is cause


def test_an_address_is_given_once() -> None:
    with pytest.raises(RolloutError) as caught, boundary("agent"), boundary("tool"):
        raise KeyError("tea")
    assert caught.value.failure.where == "tool"


def test_a_model_s_failure_stays_the_model_s() -> None:
    with pytest.raises(ModelError) as caught, boundary("agent"):
        raise ModelError("rate_limit", "slow down", retry_after_s=2.0)
    assert caught.value.failure == Failure("model", "rate_limit", "slow down", retryable=True, retry_after_s=2.0)


@pytest.mark.parametrize("kind", ["caller", "denied"])
def test_a_request_that_would_be_refused_again_is_not_retried(kind: errors.ModelFault) -> None:
    assert not ModelError(kind, "no").failure.retryable


def test_time_that_ran_out_is_a_timeout_that_may_be_tried_again() -> None:
    failure = failure_of(TimeoutError("no answer in 5 s"))
    assert (failure.kind, failure.retryable) == ("timeout", True)
    assert "no answer in 5 s" in failure.detail


def test_a_tool_s_message_that_leaves_its_tool_is_an_error() -> None:
    assert failure_of(ToolError("not enough tea")).detail.startswith("ToolError: not enough tea")


@pytest.mark.parametrize("error", [ConfigError("c"), ContractError("c"), StoreError("full")])
def test_what_stops_a_run_passes(error: RollmillError) -> None:
    with pytest.raises(type(error)) as caught, boundary("environment"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("signal", [KeyboardInterrupt, GeneratorExit])
def test_what_is_no_error_passes(signal: type[BaseException]) -> None:
    with pytest.raises(signal), boundary("environment"):
        raise signal


def test_an_authors_exit_ends_a_rollout_and_not_the_run() -> None:
    with pytest.raises(RolloutError, match="verifier: SystemExit: 3"), boundary("verifier"):
        raise SystemExit(3)


async def test_cancellation_of_a_task_passes() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        with boundary("tool"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_around_a_boundary_is_still_a_timeout() -> None:
    async def work() -> None:
        with boundary("tool"):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.01)


async def test_something_else_that_was_cancelled_is_an_error_like_any_other() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answer.cancel()
    with pytest.raises(RolloutError) as caught, boundary("tool"):
        await answer
    assert (caught.value.failure.where, caught.value.failure.kind) == ("tool", "error")
    assert "CancelledError" in caught.value.failure.detail


def test_a_description_names_the_place_where_it_was_raised() -> None:
    def inner() -> None:
        raise RuntimeError("boom")

    def outer() -> None:
        inner()

    with pytest.raises(RuntimeError) as caught:
        outer()
    line = inner.__code__.co_firstlineno + 1
    assert describe(caught.value) == f"RuntimeError: boom (test_errors.py:{line}, in inner)"


def test_a_description_is_one_line() -> None:
    assert describe(ValueError("first\n  second\n")) == "ValueError: first second"
    assert describe(ValueError()) == "ValueError: no message"


def test_a_near_miss_is_suggested() -> None:
    assert suggestion("limti", ["limit", "repeats"]) == '; did you mean "limit"?'
    assert suggestion("colour", ["limit", "repeats"]) == ""
    assert suggestion("x", []) == ""


EVERY = [
    RollmillError("r"),
    CallerError("c"),
    ConfigError("c"),
    ContractError("c"),
    ToolError("t"),
    RunError("r"),
    StoreError("s"),
    OutageError("o"),
    ServiceError("s"),
    RolloutError("boom"),
    RolloutError(Failure("tool", "error", "broken")),
    ModelError("overload", "busy", retry_after_s=1.5),
]


def kinds(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds(kind)


def test_every_kind_is_shown_here_and_drawn_in_the_module() -> None:
    ours = {kind for kind in kinds(RollmillError) if kind.__module__ == "rollmill.errors"}
    assert {type(error) for error in EVERY} == ours
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in ours)


@pytest.mark.parametrize("error", EVERY, ids=repr)
def test_an_exception_survives_pickling_and_copying(error: RollmillError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert getattr(again, "failure", None) == getattr(error, "failure", None)


def test_a_rollout_s_failure_can_be_said_in_one_string() -> None:
    assert RolloutError("the node is gone").failure == Failure("infrastructure", "error", "the node is gone")
    assert str(RolloutError(Failure("tool", "error", "broken"))) == "tool: broken"
