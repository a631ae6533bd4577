from rollmill.collection.retry import RetryPolicy
from rollmill.types import Failure

BUSY = Failure("model", "overload", "busy", retryable=True)


def test_waits_grow_up_to_a_limit_and_differ():
    policy = RetryPolicy(attempts=20, first_s=1, longest_s=8)
    for attempt, most in ((1, 1), (2, 2), (3, 4), (4, 8), (9, 8)):
        waits = {policy.wait(BUSY, attempt) for _ in range(50)}
        assert most / 2 <= min(waits) < max(waits) <= most


def test_the_server_decides_when_it_says_how_long_and_nobody_comes_earlier():
    asked = Failure("model", "rate_limit", "x", retryable=True, retry_after_s=120.0)
    waits = {RetryPolicy().wait(asked, 1) for _ in range(50)}
    assert 120 <= min(waits) < max(waits) <= 121


def test_what_it_asks_for_may_be_less_than_what_is_usual():
    asked = Failure("model", "rate_limit", "x", retryable=True, retry_after_s=0.01)
    assert RetryPolicy(attempts=9).wait(asked, 5) >= 8


def test_there_is_an_end_to_trying():
    policy = RetryPolicy(attempts=3)
    assert policy.wait(BUSY, 2) is not None
    assert policy.wait(BUSY, 3) is None
    assert policy.wait(Failure("tool", "error", "a bug"), 1) is None


def test_after_however_many_attempts_the_wait_is_a_number():
    policy = RetryPolicy(attempts=100_000, longest_s=10)
    assert policy.wait(BUSY, 5000) <= 10


def test_a_server_that_asks_for_too_long_is_not_waited_for():
    asked = Failure("model", "rate_limit", "x", retryable=True, retry_after_s=86_400.0)
    assert RetryPolicy().wait(asked, 1) is None
