import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rollmill.store.schema import Entry
from rollmill.store.totals import Part, Spread, Totals, read_totals, write_totals
from rollmill.types import Failure, Slot

numbers = st.floats(-1e6, 1e6)
names = st.sampled_from(["one", "two", "three"])
entries = st.builds(
    Entry,
    slot=st.builds(Slot, agent=names, task=names),
    stop=st.sampled_from(["done", "length"]),
    reward=st.one_of(st.none(), numbers),
    parts=st.dictionaries(names, numbers, max_size=2),
    failure=st.one_of(st.none(), st.builds(Failure, st.just("model"), names, st.just("detail"))),
    turns=st.integers(0, 9),
    seconds=st.dictionaries(names, st.floats(0, 1e4), max_size=2),
    labels=st.dictionaries(st.sampled_from(["task_name", "dataset"]), names),
)


def totals_of(entries: list[Entry]) -> Totals:
    totals = Totals()
    for entry in entries:
        totals.add(entry)
    return totals


@given(numbers=st.lists(numbers, min_size=2, max_size=50))
def test_a_spread_is_what_its_numbers_are(numbers):
    spread = Spread()
    for number in numbers:
        spread.add(number)
    at_once = Spread()
    at_once.add_all(numbers[:3])
    at_once.add_all(numbers[3:])
    for found in (spread, at_once):
        assert (found.count, found.least, found.most) == (len(numbers), min(numbers), max(numbers))
    assert (at_once.total, at_once.squares) == pytest.approx((spread.total, spread.squares), rel=1e-9, abs=1e-3)
    assert spread.mean == pytest.approx(statistics.fmean(numbers), abs=1e-6)
    assert spread.deviation == pytest.approx(statistics.stdev(numbers), rel=1e-4, abs=1e-1)


def test_a_spread_of_nothing():
    assert math.isnan(Spread().mean)
    assert Spread().deviation == 0.0


@given(entries=st.lists(entries, max_size=30))
def test_totals_are_what_the_entries_come_to(entries):
    totals = Totals()
    totals.add_all(entries[:7])
    totals.add_all(entries[7:])
    ended = [entry for entry in entries if entry.failure is None]
    paid = [entry.reward for entry in ended if entry.reward is not None]
    assert totals.rollouts == len(ended)
    assert (totals.rewarded, totals.unverified) == (len(paid), len(ended) - len(paid))
    assert totals.failed == len(entries) - len(ended)
    assert sum(totals.stops.values()) == len(ended)
    if ended:
        assert totals.counts["turns"].total == sum(entry.turns for entry in ended)
    if paid:
        assert totals.numbers["reward"].total == pytest.approx(sum(paid))
    for agent, part in totals.parts.get("agent", {}).items():
        mine = [entry for entry in entries if entry.slot.agent == agent]
        assert (part.ended, part.failed) == (len(mine), sum(entry.failure is not None for entry in mine))
    for dataset, part in totals.parts.get("dataset", {}).items():
        assert part.ended == sum(entry.labels.get("dataset") == dataset for entry in entries)


@given(entries=st.lists(entries, max_size=10))
def test_totals_read_back_are_the_same(entries):
    totals = totals_of(entries)
    assert read_totals(write_totals(totals)) == totals


def test_the_square_of_a_large_reward_is_read_back_too():
    totals = totals_of([Entry(Slot("one", "t"), "done", 1e200)] * 2)
    assert totals.numbers["reward"].squares == math.inf
    assert read_totals(write_totals(totals)) == totals


def test_there_are_no_totals_before_the_first():
    assert read_totals(None) == Totals()


@given(before=st.lists(entries, max_size=5), entry=entries, again=entries)
def test_a_failure_that_is_forgotten_was_never_there(before, entry, again):
    failed = replace(entry, failure=Failure("tool", "broken", "detail"))
    again = replace(again, slot=failed.slot, labels=failed.labels)
    totals = totals_of([*before, failed])
    totals.forget_failure("tool: broken", again)
    totals.add(again)
    assert totals == totals_of([*before, again])


def test_a_label_that_is_different_in_every_row_is_no_label():
    entries = [Entry(Slot("one", "t"), "done", 1.0, labels={"dataset": str(number)}) for number in range(2000)]
    totals = totals_of(entries)
    assert len(totals.parts["dataset"]) == 1000
    assert totals.parts["agent"]["one"].ended == 2000
    failed = Entry(Slot("one", "t"), "failed", labels={"dataset": "1999"}, failure=Failure("tool", "broken", ""))
    totals.add(failed)
    totals.forget_failure("tool: broken", failed)
    assert totals.parts["dataset"]["999"] == Part(totals.parts["dataset"]["999"].reward, 1, 0)
    assert totals.failed == 0
