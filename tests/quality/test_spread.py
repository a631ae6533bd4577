"""A spread from values in order, against the standard library's statistics."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.quality.spread import spread, spread_of


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]) | st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_a_spread_is_what_the_statistics_of_the_values_are(values: list[float]) -> None:
    found = spread_of(values)
    assert (found.count, found.least, found.most) == (len(values), min(values), max(values))
    assert found.median == statistics.median(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    assert found.deviation == pytest.approx(deviation, abs=1e-6)


def test_values_that_are_all_the_same_have_no_spread():
    for value in (0.1, 1 / 3, 0.7, 12.3):
        for count in range(2, 60):
            assert spread(count, [(value, count)]).deviation == pytest.approx(0.0, abs=1e-6)
