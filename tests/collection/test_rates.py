import pytest

from rollmill.collection.rates import Rates


def test_calls_go_evenly_after_a_second_s_worth(time):
    rates = Rates(requests_per_minute=120, clock=time)
    assert [rates.reserve()[0] for _ in range(6)] == pytest.approx([0, 0, 0.5, 1.0, 1.5, 2.0])
    time.now = 2.0
    assert rates.reserve()[0] == pytest.approx(0.5)


def test_less_than_one_a_second_is_still_one_at_first(time):
    rates = Rates(requests_per_minute=6, clock=time)
    assert [rates.reserve()[0] for _ in range(3)] == pytest.approx([0, 10, 20])


def test_nobody_saves_up_for_later(time):
    rates = Rates(requests_per_minute=60, clock=time)
    time.now = 3600.0
    assert [rates.reserve()[0] for _ in range(3)] == pytest.approx([0, 1, 2])


def test_over_an_hour_there_are_as_many_as_were_allowed(time):
    rates = Rates(requests_per_minute=90, clock=time)
    went = 0
    while time.now < 3600:
        time.now += rates.reserve()[0]
        went += 1
    assert went == pytest.approx(90 * 60, abs=2)


def test_tokens_are_guessed_from_what_calls_have_used(time):
    rates = Rates(tokens_per_minute=6000, clock=time)
    wait, guess = rates.reserve()
    assert wait == 0
    rates.used(guess, 50)
    # What was guessed too much has come back.
    assert [rates.reserve() for _ in range(2)] == [(pytest.approx(0), 50), (pytest.approx(0.5), 50)]


def test_what_was_guessed_too_little_is_paid_by_those_who_come_later(time):
    rates = Rates(tokens_per_minute=6000, clock=time)
    _, guess = rates.reserve()
    rates.used(guess, 100)
    time.now = 60.0
    _, guess = rates.reserve()
    assert guess == 100
    rates.used(guess, 1100)
    assert rates.reserve()[0] > 10


def test_over_an_hour_as_many_tokens_are_used_as_were_allowed(time):
    rates, used = Rates(tokens_per_minute=60_000, clock=time), 0
    number = 0
    while time.now < 3600:
        wait, guess = rates.reserve()
        time.now += wait
        tokens = 200 + 5000 * (number % 10 == 0)
        rates.used(guess, tokens)
        used += tokens
        number += 1
    assert used == pytest.approx(60 * 60_000, rel=0.01)


def test_the_narrower_of_the_two_decides(time):
    rates = Rates(requests_per_minute=60, tokens_per_minute=60_000_000, clock=time)
    rates.reserve()
    assert rates.reserve()[0] == pytest.approx(1)


def test_who_gives_up_before_it_goes_leaves_its_turn_to_others(time):
    rates = Rates(requests_per_minute=60, tokens_per_minute=60_000, clock=time)
    rates.reserve()
    wait, guess = rates.reserve()
    rates.unsent(guess)
    assert rates.reserve()[0] == pytest.approx(wait)
