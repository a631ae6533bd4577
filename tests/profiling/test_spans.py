"""Wall time by stage: as good as a list of all times, in constant memory."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from rollmill.profiling.spans import OTHERS, Span, Spans, together, whole


def span_of(times: list[float]) -> Span:
    span = Span()
    for seconds in times:
        span.add(seconds)
    return span


def spread(count: int, seed: int) -> list[float]:
    """Times from a microsecond to a day."""
    chance = random.Random(seed)
    return [10 ** chance.uniform(-6, 5) for _ in range(count)]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("count", [1, 2, 20, 5000])
def test_a_quantile_is_at_most_a_twentieth_off(share, count):
    times = spread(count, seed=count)
    exact = sorted(times)[math.ceil(share * count) - 1]
    assert span_of(times).quantile(share) == pytest.approx(exact, rel=0.05)


def test_counts_totals_and_the_most_are_exact():
    times = spread(1000, seed=1)
    span = span_of(times)
    assert (span.count, span.most_s) == (1000, max(times))
    assert span.total_s == pytest.approx(math.fsum(times))
    assert span.quantile(1) <= span.most_s


def test_however_many_there_are_the_memory_is_the_same():
    assert len(span_of(spread(100_000, seed=2)).buckets) < 300


def test_what_took_no_time_counts_too():
    span = span_of([0.0, 0.0, 0.0])
    assert (span.count, span.total_s, span.quantile(0.5)) == (3, 0.0, 0.0)
    assert Span().quantile(0.5) == 0.0


def test_several_together_are_as_if_they_were_one():
    first, second = spread(100, seed=3), spread(300, seed=4)
    both = span_of(first) + span_of(second)
    one = span_of(first + second)
    assert (both.count, both.most_s, both.buckets) == (one.count, one.most_s, one.buckets)


def test_stages_have_parts_by_name():
    spans = Spans()
    for name, seconds in (("look", 1.0), ("take", 2.0), ("look", 3.0)):
        spans.add("tools", seconds, name)
    spans.add("verify", 5.0)
    spans.add("verify", 4.0, "right")
    tools, verify = spans.stages["tools"], spans.stages["verify"]
    assert {name: one.count for name, one in tools.items()} == {"look": 2, "take": 1}
    # A stage that was not measured as a whole is what its parts are.
    assert (whole(tools).count, whole(tools).total_s) == (3, 6.0)
    assert (whole(verify).count, whole(verify).total_s) == (1, 5.0)


def test_names_that_a_model_invents_take_no_more_memory():
    spans = Spans()
    for number in range(10_000):
        spans.add("tools", 0.001, f"tool_{number}")
    assert len(spans.stages["tools"]) <= 201
    assert whole(spans.stages["tools"]).count == 10_000
    assert spans.stages["tools"][OTHERS].count > 9_000


def test_those_of_two_processes_come_together_after_they_have_travelled():
    one, other = Spans(), Spans()
    one.add("model", 1.0, "policy")
    other.add("model", 2.0, "policy")
    other.add("store", 3.0)
    travelled = msgspec.json.decode(msgspec.json.encode(other.stages), type=dict[str, dict[str, Span]])
    found = together(one.stages, travelled)
    assert found["model"]["policy"] == span_of([1.0, 2.0])
    assert found["store"][""] == span_of([3.0])
    assert one.stages["model"]["policy"].count == 1
