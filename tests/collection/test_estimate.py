import pytest
from tests.collection.parts import FAILED, entry

from rollmill.collection.estimate import Sample
from rollmill.collection.options import Price


class Clock:
    def __init__(self, step_s: float = 0.1) -> None:
        self.at, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self.at += self._step_s
        return self.at


def sample(*entries, prices=None, step_s: float = 0.1) -> Sample:
    found = Sample(prices or {}, Clock(step_s))
    for one in entries:
        found.ended(one)
    return found


def of(found: Sample, slots: int = 1000, **options):
    return found.estimate(slots, **({"in_flight": 8, "output_bytes": 0} | options))


def test_speed_and_time():
    estimate = of(sample(*[entry()] * 50))
    assert estimate.sampled == 50
    assert estimate.rollouts_per_s == pytest.approx(10)
    assert estimate.seconds == pytest.approx(100)
    assert estimate.in_flight == 8


def test_the_wait_for_the_first_and_for_the_longest_is_not_the_speed_between():
    found = Sample({}, clock := Clock())
    clock.at = 60.0
    for _ in range(100):
        found.ended(entry())
    clock.at += 60.0
    found.ended(entry())
    assert of(found).rollouts_per_s == pytest.approx(10)


def test_too_few_say_nothing_of_the_speed():
    estimate = of(sample(entry(), entry()))
    assert (estimate.rollouts_per_s, estimate.seconds) == (None, None)


def test_tokens_and_bytes_are_of_what_the_sample_took():
    entries = [entry(input_tokens=100, output_tokens=20 * (place % 2)) for place in range(100)]
    estimate = of(sample(*entries), output_bytes=100 * 2500)
    assert estimate.input_tokens == 100_000
    assert estimate.output_tokens == 10_000
    assert estimate.bytes == 2_500_000
    # By hand: 100 numbers of 100 or 120, deviation 10.05, mean 110.
    assert estimate.tokens_half_width == pytest.approx(1.96 * 10.0504 / 10 / 110, rel=1e-4)


def test_the_bytes_of_an_output_are_those_of_slots_that_did_not_fail():
    estimate = of(sample(*[entry()] * 10, *[entry(failure=FAILED)] * 10), output_bytes=10_000)
    assert (estimate.sampled, estimate.failed) == (20, 10)
    assert estimate.bytes == 1_000_000


def test_the_cost_is_at_the_prices_given():
    entries = [entry(input_tokens=1000, cached_tokens=600, output_tokens=100)] * 10
    prices = {"m": Price(input=2.0, output=10.0)}
    assert of(sample(*entries, prices=prices)).cost == pytest.approx(1000 * (1000 * 2 + 100 * 10) / 1e6)
    cached = {"m": Price(input=2.0, output=10.0, cached=0.5)}
    estimate = of(sample(*entries, prices=cached))
    assert estimate.cost == pytest.approx(1000 * (400 * 2 + 600 * 0.5 + 100 * 10) / 1e6)
    assert estimate.cost_half_width == pytest.approx(0, abs=1e-6)
    assert estimate.unpriced == ()


def test_a_model_without_a_price_has_no_cost_and_is_named():
    entries = [entry(input_tokens=10), entry(input_tokens=10, model="judge")]
    estimate = of(sample(*entries, prices={"m": Price(input=1.0, output=1.0)}))
    assert (estimate.cost, estimate.cost_half_width, estimate.unpriced) == (None, None, ("judge",))


def test_nothing_sampled_is_nothing():
    estimate = of(sample())
    assert (estimate.sampled, estimate.rollouts_per_s, estimate.cost) == (0, None, None)
