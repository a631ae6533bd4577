"""Statistics in one pass, against those in several."""

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.quality.stats import Groups, Interval, Running

NUMBERS = st.floats(-1e6, 1e6)


def running(values: list[float]) -> Running:
    found = Running()
    for value in values:
        found.add(value)
    return found


def groups(*tasks: list[float]) -> Groups:
    found = Groups()
    for task, rewards in enumerate(tasks):
        for reward in rewards:
            found.add(task, reward)
    return found


@given(st.lists(NUMBERS, min_size=2))
def test_one_pass_finds_what_several_do(values: list[float]) -> None:
    found = running(values)
    assert found.count == len(values)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
    assert found.deviation == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-4)
    assert (found.least, found.most) == (min(values), max(values))


def test_a_small_spread_around_a_large_mean_is_not_lost() -> None:
    assert running([1e9 + value for value in (4, 7, 13, 16)]).deviation == pytest.approx(
        statistics.stdev([4, 7, 13, 16])
    )


def test_one_number_has_no_spread_and_none_has_no_range() -> None:
    assert (running([3.0]).mean, running([3.0]).deviation) == (3.0, 0.0)
    nothing = Running()
    assert (nothing.count, nothing.deviation, nothing.least, nothing.most) == (0, 0.0, math.inf, -math.inf)


def test_the_interval_is_clustered_by_task() -> None:
    # By hand: 6 rollouts of 3 tasks, mean 3/6. Residual sums by task: 2 - 1, 1 - 1, 0 - 1, so the squares add up to 2;
    # with the correction 3/2 the variance of the sum is 3, and the standard error of the mean is sqrt(3) / 6.
    found = groups([1, 1], [1, 0], [0, 0]).interval()
    assert found.mean == 0.5
    assert found.half_width == pytest.approx(1.96 * math.sqrt(3) / 6)


def test_the_interval_weighs_every_rollout_where_tasks_have_different_numbers() -> None:
    # By hand: mean 2/5; residuals 2 - 6/5 = 0.8 and 0 - 4/5 = -0.8; 2 * (0.64 + 0.64) = 2.56; sqrt(2.56) / 5 = 0.32.
    found = groups([1, 1, 0], [0, 0]).interval()
    assert found.mean == pytest.approx(0.4)
    assert found.half_width == pytest.approx(1.96 * 0.32)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=20))
def test_with_one_rollout_a_task_the_interval_is_the_usual_one(rewards: list[float]) -> None:
    found = groups(*([reward] for reward in rewards)).interval()
    assert found.mean == pytest.approx(statistics.fmean(rewards))
    usual = 1.96 * statistics.stdev(rewards) / math.sqrt(len(rewards))
    assert found.half_width == pytest.approx(usual, abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=10), st.integers(2, 5))
def test_saying_everything_twice_makes_no_interval_narrower(rewards: list[float], times: int) -> None:
    once = groups(*([reward] for reward in rewards)).interval()
    often = groups(*([reward] * times for reward in rewards)).interval()
    assert often.half_width == pytest.approx(once.half_width, abs=1e-12)


def test_one_task_alone_says_nothing_of_the_spread() -> None:
    assert groups([1, 0, 0, 1]).interval() == Interval(0.5, None)


def test_nothing_has_no_mean() -> None:
    found = Groups().interval()
    assert math.isnan(found.mean)
    assert found.half_width is None
    assert len(Groups()) == 0


def test_the_numbers_of_rollouts_are_counted_by_task() -> None:
    found = groups([1, 1], [0, 0], [1])
    assert len(found) == 3
    assert found.sizes == {2: 2, 1: 1}


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_pass(count: int, data: st.DataObject) -> None:
    rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
    k = data.draw(st.integers(1, count))
    choices = list(itertools.combinations(rewards, k))
    chance, tasks = groups(rewards).pass_at(k)
    assert chance == pytest.approx(sum(1.0 in choice for choice in choices) / len(choices))
    assert tasks == 1


def test_pass_at_k_is_the_mean_over_the_tasks_that_have_k() -> None:
    # 1 - C(2,2)/C(3,2) = 2/3 and 1 - 0 = 1; the third task has too few.
    chance, tasks = groups([1, 0, 0], [1, 1], [1]).pass_at(2)
    assert chance == pytest.approx((2 / 3 + 1) / 2)
    assert tasks == 2


def test_pass_at_more_than_anybody_has_is_nothing() -> None:
    chance, tasks = groups([1, 0]).pass_at(3)
    assert math.isnan(chance)
    assert tasks == 0


def test_a_pass_is_the_full_reward() -> None:
    assert groups([0.99, 1.0, 1.5]).pass_at(1)[0] == pytest.approx(2 / 3)
