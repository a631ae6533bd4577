from rollmill.collection.retry import RetryPolicy
from rollmill.types import Failure

BUSY = Failure("model", "overload", "busy", retryable=True)


def test_waits_grow_up_to_a_limit_and_differ():
    policy = RetryPolicy(attempts=20, first_s=1, longest_s=8)
    for attempt, most in ((1, 1), (2, 2), (3, 4), (4, 8), (9, 8)):
        waits = {policy.wait(BUSY, attempt) for _ in range(50)}
        assert most / 2 <= min(waits) < max(waits) <= most


def test_the_server_decides_when_it_says_how_long():
    assert RetryPolicy().wait(Failure("model", "rate_limit", "x", retryable=True, retry_after_s=120.0), 1) == 120


def test_there_is_an_end_to_trying():
    policy = RetryPolicy(attempts=3)
    assert policy.wait(BUSY, 2) is not None
    assert policy.wait(BUSY, 3) is None
    assert policy.wait(Failure("tool", "error", "a bug"), 1) is None


def test_a_server_that_asks_for_too_long_is_not_waited_for():
    asked = Failure("model", "rate_limit", "x", retryable=True, retry_after_s=86_400.0)
    assert RetryPolicy().wait(asked, 1) is None
