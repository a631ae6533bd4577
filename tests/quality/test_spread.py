"""A spread from values in order, against the standard library's statistics."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.quality.spread import spread_of


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]) | st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_a_spread_is_what_the_statistics_of_the_values_are(values: list[float]) -> None:
    found = spread_of(values)
    assert (found.count, found.least, found.most) == (len(values), min(values), max(values))
    assert found.median == statistics.median(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    assert found.deviation == pytest.approx(deviation, abs=1e-6)


@pytest.mark.parametrize("count", range(1, 30))
def test_equal_values_are_not_spread_whatever_they_are(count):
    for value in (0.1, 1 / 3, 0.7654322, -2.2, 1e300, 5e-324):
        numbers = spread_of([value] * count)
        assert (numbers.mean, numbers.median, numbers.deviation) == (value, value, 0.0)


def test_values_that_hardly_differ_have_a_spread_that_is_none_too_small():
    chance = random.Random(1)
    for _ in range(2000):
        base = chance.uniform(-1, 1)
        values = [math.nextafter(base, chance.choice((-9, 9))) for _ in range(chance.randrange(2, 9))]
        assert spread_of(values).deviation >= 0
