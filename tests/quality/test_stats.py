"""Statistics from sums, against those from lists."""

import itertools
import math
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.quality.stats import Interval, clustered, pass_at, passes


def interval(*tasks: list[float]) -> Interval:
    """The mean over tasks with these rewards each, from the sums that an index gives."""
    sums = [(sum(rewards), len(rewards)) for rewards in tasks]
    return clustered(
        tasks=len(sums),
        rollouts=sum(count for _, count in sums),
        total=sum(total for total, _ in sums),
        squares=sum(total * total for total, _ in sums),
        cross=sum(total * count for total, count in sums),
        counts=sum(count * count for _, count in sums),
    )


def groups(*tasks: list[float]) -> Counter[tuple[int, int]]:
    return Counter((len(rewards), sum(reward >= 1 for reward in rewards)) for rewards in tasks)


def test_the_interval_is_clustered_by_task() -> None:
    # By hand: 6 rollouts of 3 tasks, mean 3/6. Residual sums by task: 2 - 1, 1 - 1, 0 - 1, so the squares add up to 2;
    # with the correction 3/2 the variance of the sum is 3, and the standard error of the mean is sqrt(3) / 6.
    found = interval([1, 1], [1, 0], [0, 0])
    assert found.mean == 0.5
    assert found.half_width == pytest.approx(1.96 * math.sqrt(3) / 6)


def test_the_interval_weighs_every_rollout_where_tasks_have_different_numbers() -> None:
    # By hand: mean 2/5; residuals 2 - 6/5 = 0.8 and 0 - 4/5 = -0.8; 2 * (0.64 + 0.64) = 2.56; sqrt(2.56) / 5 = 0.32.
    found = interval([1, 1, 0], [0, 0])
    assert found.mean == pytest.approx(0.4)
    assert found.half_width == pytest.approx(1.96 * 0.32)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=20))
def test_with_one_rollout_a_task_the_interval_is_the_usual_one(rewards: list[float]) -> None:
    found = interval(*([reward] for reward in rewards))
    assert found.mean == pytest.approx(statistics.fmean(rewards))
    usual = 1.96 * statistics.stdev(rewards) / math.sqrt(len(rewards))
    assert found.half_width == pytest.approx(usual, abs=1e-7)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=10), st.integers(2, 5))
def test_saying_everything_twice_makes_no_interval_narrower(rewards: list[float], times: int) -> None:
    once = interval(*([reward] for reward in rewards))
    often = interval(*([reward] * times for reward in rewards))
    assert often.half_width == pytest.approx(once.half_width, abs=1e-7)


def test_one_task_alone_says_nothing_of_the_spread() -> None:
    assert interval([1, 0, 0, 1]) == Interval(0.5, None)


def test_nothing_has_no_mean() -> None:
    found = interval()
    assert math.isnan(found.mean)
    assert found.half_width is None


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_pass(count: int, data: st.DataObject) -> None:
    rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
    k = data.draw(st.integers(1, count))
    choices = list(itertools.combinations(rewards, k))
    chance, tasks = pass_at(k, groups(rewards))
    assert chance == pytest.approx(sum(1.0 in choice for choice in choices) / len(choices))
    assert tasks == 1


def test_pass_at_k_is_the_mean_over_the_tasks_that_have_k() -> None:
    # 1 - C(2,2)/C(3,2) = 2/3 and 1 - 0 = 1; the third task has too few.
    chance, tasks = pass_at(2, groups([1, 0, 0], [1, 1], [1]))
    assert chance == pytest.approx((2 / 3 + 1) / 2)
    assert tasks == 2


def test_pass_at_more_than_anybody_has_is_nothing() -> None:
    chance, tasks = pass_at(3, groups([1, 0]))
    assert math.isnan(chance)
    assert tasks == 0


def test_groups_of_one_size_are_asked_for_powers_of_two_and_the_size() -> None:
    found = passes(groups([1, 0, 0, 0, 0, 0], [0] * 6))
    assert [k for k, _, _ in found] == [1, 2, 4, 6]
    assert [tasks for _, _, tasks in found] == [2] * 4
    assert found[-1][1] == 0.5


def test_groups_that_are_not_all_full_are_asked_for_the_commonest_size() -> None:
    found = passes(groups([1, 0, 0], [0, 0, 0], [1, 0], [1, 0, 0, 0]))
    assert [(k, tasks) for k, _, tasks in found] == [(1, 4), (2, 4), (3, 3)]


def test_single_rollouts_have_no_pass_at_k() -> None:
    assert passes(groups([1], [0])) == []
    assert passes(groups()) == []
