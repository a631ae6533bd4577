import random
from collections import defaultdict
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollmill as rm
from rollmill.store.index import NAME, Index
from rollmill.store.ledger import Ledger, Wanted
from rollmill.store.lines import Place
from rollmill.store.schema import Entry
from rollmill.types import Failure, Slot

FAILURE = Failure("model", "timeout", "late")


def want(number: int, given: int | None = None, rollout: int | None = None, *, agent: str = "a") -> Wanted:
    return Wanted(agent, number.to_bytes(16), given, rollout)


def planned(
    index: Index, *rows: Wanted, repeats: int = 1, retry_failed: bool = False, stretch: int = 3, run: str = ""
) -> list[Slot]:
    """The slots that a pass through an input asks for, read some rows at a time."""
    ledger = Ledger(index, run=run, retry_failed=retry_failed)
    found = []
    for start in range(0, len(rows), stretch):
        owed, tasks = ledger.plan(rows[start : start + stretch], lambda _: repeats)
        assert len(owed) == len(tasks) == len(rows[start : start + stretch])
        found += [slot for one in owed for slot in one.slots]
    return found


def end(index: Index, *slots: Slot, failure: Failure | None = None) -> None:
    numbers = count(end.calls)
    end.calls += len(slots)
    with index.transaction():
        index.add([(Entry(slot, "done", 1.0, failure=failure), Place(next(numbers), 1)) for slot in slots])


end.calls = 0


def indices(slots: list[Slot]) -> list[tuple[int, int]]:
    return [(slot.task_index, slot.rollout_index) for slot in slots]


@pytest.fixture
def index():
    with Index(None) as index:
        yield index


def test_tasks_get_the_next_index_and_repeats_count_up(index):
    assert indices(planned(index, want(7), want(3), repeats=2)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_task_keeps_its_index_in_an_output(index):
    end(index, Slot("a", want(7).identity.hex(), 0, 0, 5, 0))
    slots = planned(index, want(1), want(7), repeats=2)
    assert indices(slots) == [(0, 0), (0, 1), (5, 1)]


def test_a_row_that_names_its_index_keeps_it(index):
    assert indices(planned(index, want(1, 40), want(2))) == [(40, 0), (0, 0)]


def test_a_row_cannot_take_the_index_of_a_task_that_got_it_here(index):
    planned(index, want(1))
    with pytest.raises(rm.ConfigError, match="_ng_task_index 0, which another task has got in this output"):
        planned(index, want(2, 0))


def test_a_task_that_stands_twice_in_the_input_is_one_group(index):
    slots = planned(index, want(1), want(1), repeats=2)
    assert indices(slots) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [(slot.occurrence, slot.repeat) for slot in slots] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_tasks_that_bring_one_index_are_one_group_in_which_every_rollout_has_a_number(index):
    assert indices(planned(index, want(1, 5), want(2, 5), repeats=2)) == [(5, 0), (5, 1), (5, 2), (5, 3)]


def test_a_new_task_of_a_group_takes_no_number_of_the_others(index):
    end(index, *planned(index, want(1, 5), repeats=2))
    assert indices(planned(index, want(2, 5), want(1, 5), repeats=2)) == [(5, 2), (5, 3)]


def test_rows_that_name_their_rollout_keep_it(index):
    rows = [want(1, 4, 0), want(1, 4, 1), want(2, 5, 0), want(2, 5, 1)]
    assert indices(planned(index, *rows)) == [(4, 0), (4, 1), (5, 0), (5, 1)]
    assert sorted(indices(planned(index, *rows, repeats=3))) == [(i, n) for i in (4, 5) for n in range(6)]


def test_tasks_that_a_crash_left_unrecorded_get_the_indices_they_had(index):
    rows = [want(number) for number in range(6)]
    first = planned(index, *rows)
    end(index, first[4], first[1])
    assert planned(index, *rows) == [first[0], first[2], first[3], first[5]]
    index.clear()
    end(index, first[4], first[1])
    assert planned(index, *rows) == [first[0], first[2], first[3], first[5]]


def test_more_repeats_of_a_doubled_task_take_free_numbers(index):
    end(index, *planned(index, want(1), want(1)))
    assert indices(planned(index, want(1), want(1), repeats=2)) == [(0, 2), (0, 3)]


def test_the_same_task_of_another_agent_is_another_task(index):
    slots = planned(index, want(1), want(1, agent="b"))
    assert [(slot.agent, slot.task_index) for slot in slots] == [("a", 0), ("b", 1)]
    end(index, slots[0])
    assert planned(index, want(1), want(1, agent="b")) == slots[1:]


def test_a_slot_that_failed_is_played_again_when_that_is_asked_for_and_is_the_same_slot(index):
    slots = planned(index, want(1), want(2))
    end(index, slots[0])
    end(index, slots[1], failure=FAILURE)
    assert planned(index, want(1), want(2)) == []
    assert planned(index, want(1), want(2), retry_failed=True) == slots[1:]
    (owed,) = Ledger(index).plan([want(2)], lambda _: 3)[0]
    assert (owed.held, owed.failed, len(owed.slots)) == (1, 1, 2)


def test_what_an_earlier_pass_asked_for_and_nobody_has_played_is_known_with_who_asked(index):
    first = planned(index, *map(want, range(5)), repeats=2, run="first")
    end(index, *first[:4], first[6], first[9])
    second = planned(index, *map(want, range(3, 9)), run="second")
    end(index, *second)
    # Of the tasks 2, 3 and 4 the second pass asked for one rollout of two, or for none.
    assert index.left_over(6 + len(second)) == [("first", 3, 2, (2, 3))]
    end(index, *planned(index, *map(want, range(5)), repeats=2, run="third"))
    assert index.left_over(16) == []


def test_who_asks_for_more_is_who_asked(index):
    end(index, *planned(index, want(1), want(2), run="first"))
    planned(index, want(2), want(2), repeats=3, run="second")
    assert index.left_over(2) == [("second", 5, 1, (1,))]
    # Asking for less again changes nothing.
    planned(index, want(2), run="third")
    assert index.left_over(2) == [("second", 5, 1, (1,))]


def test_the_first_of_equal_rows_decides_about_the_index(index):
    assert indices(planned(index, want(1), want(1, 9), want(2, 9))) == [(0, 0), (0, 1), (9, 0)]


def test_a_task_that_stands_in_the_input_a_thousand_times(index):
    slots = planned(index, *[want(1)] * 1000, stretch=128)
    assert [(slot.occurrence, slot.rollout_index) for slot in slots] == [(n, n) for n in range(1000)]


def test_indices_beyond_what_is_kept_densely(index):
    rows = [want(1, 2**40), want(2, 2**40), want(3, 2**26 + 1), want(4, 2**26 - 1), want(5)]
    wanted = [(2**40, 0), (2**40, 1), (2**26 + 1, 0), (2**26 - 1, 0), (0, 0)]
    assert indices(planned(index, *rows)) == wanted


@st.composite
def inputs(draw) -> list[Wanted]:
    """The rows of a dataset, each of which brings its indices always or never."""
    tasks = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["plain", "given", "shared", "rollouts"]))
    copies = [draw(st.integers(1, 3)) for _ in range(tasks)]
    if kind == "rollouts":
        return [want(n, n, copy) for n in range(tasks) for copy in range(copies[n])]
    index = {"plain": lambda n: None, "given": lambda n: 3 * n, "shared": lambda n: n // 2}[kind]
    return [want(n, index(n)) for n in range(tasks) for _ in range(copies[n])]


passes = st.lists(
    st.tuples(st.integers(0, 2**32), st.integers(1, 4), st.floats(0, 1), st.sampled_from(["same", "ledger", "index"])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(rows=inputs(), passes=passes)
def test_whatever_is_asked_for_in_whatever_order_every_slot_is_played_once(rows, passes):
    with Index(None) as index:
        ended: dict[str, Slot] = {}
        for seed, repeats, share, restart in passes:
            order = random.Random(seed)
            some = order.sample(rows, order.randint(1, len(rows)))
            slots = planned(index, *some, repeats=repeats, stretch=order.randint(1, 5))
            check_together(ended, slots)
            done = [slot for slot in slots if order.random() < share]
            order.shuffle(done)
            end(index, *done)
            ended |= {slot.key: slot for slot in done}
            if restart == "index":
                index.clear()
                end(index, *ended.values())
        # A last pass, in which everything ends.
        last = max(repeats for _, repeats, _, _ in passes)
        slots = planned(index, *rows, repeats=last)
        check_together(ended, slots)
        end(index, *slots)
        assert planned(index, *rows, repeats=last) == []
        wanted = {(row.identity.hex(), occ, repeat) for row, occ in numbered(rows) for repeat in range(last)}
        played = [(slot.task, slot.occurrence, slot.repeat) for slot in (*ended.values(), *slots)]
        assert sorted(played) == sorted(wanted)


def check_together(ended: dict[str, Slot], slots: list[Slot]) -> None:
    """No slot twice, no two with the same two indices, and a task's index is one for ever."""
    both = [*ended.values(), *slots]
    assert len({slot.key for slot in both}) == len(both)
    assert len(set(indices(both))) == len(both)
    groups = defaultdict(set)
    for slot in both:
        groups[slot.task].add(slot.task_index)
    assert all(len(group) == 1 for group in groups.values())


def numbered(rows: list[Wanted]):
    seen: dict[bytes, int] = defaultdict(int)
    for row in rows:
        yield row, seen[row.identity]
        seen[row.identity] += 1


@settings(max_examples=100, deadline=None)
@given(rows=inputs(), passes=passes)
def test_what_is_recalled_is_what_would_have_been_read(tmp_path_factory, rows, passes):
    folder: Path = tmp_path_factory.mktemp("run")
    with Index(folder / f"one-{NAME}") as with_memory, Index(folder / f"two-{NAME}") as without:
        rows = [want(int.from_bytes(row.identity)) for row in rows]
        for seed, repeats, share, _ in passes:
            order = random.Random(seed)
            some = rows[: order.randint(1, len(rows))]
            recalling, reading = Ledger(with_memory), Ledger(without)
            for number in range(0, len(some), 2):
                stretch = some[number : number + 2]
                hashes = b"".join(row.identity for row in stretch)
                known = recalling.recall("input", number, hashes)
                assert known is None or known == stretch
                one, tasks = recalling.plan(known or stretch, lambda _, n=repeats: n)
                other, _ = reading.plan(stretch, lambda _, n=repeats: n)
                assert one == other
                recalling.remember("input", number, hashes, tasks)
                done = [slot for owed in one for slot in owed.slots if order.random() < share]
                end(with_memory, *done)
                end(without, *done)


def test_a_stretch_that_has_changed_is_not_recalled(index):
    ledger = Ledger(index)
    _, tasks = ledger.plan([want(1), want(2)], lambda _: 1)
    ledger.remember("input", 0, b"hashes", tasks)
    assert Ledger(index).recall("input", 0, b"hashes") == [want(1), want(2)]
    assert Ledger(index).recall("input", 0, b"others") is None
    assert Ledger(index).recall("input", 1, b"hashes") is None
    assert Ledger(index).recall("other", 0, b"hashes") is None


# What leaves the input.


def test_rows_that_come_back_ask_for_nothing_more(index):
    ledger = Ledger(index)

    def asked(part: int, *rows: Wanted) -> list[tuple[int, int]]:
        owed, _ = ledger.plan(rows, lambda _: 2, part)
        return [(slot.occurrence, slot.rollout_index) for one in owed for slot in one.slots]

    assert asked(1, want(1), want(2), want(1)) == [(0, 0), (0, 1), (0, 0), (0, 1), (1, 2), (1, 3)]
    ledger.withdraw(1)
    assert asked(2, want(1), want(2)) == []
    # A third one, of which two were there before.
    assert asked(2, want(1), want(1)) == [(2, 4), (2, 5)]
    assert asked(3, want(2)) == [(1, 2), (1, 3)]
    ledger.withdraw(2)
    ledger.withdraw(2)
    assert asked(4, want(1), want(1), want(1), want(2)) == []


def test_what_belongs_to_no_part_stays(index):
    ledger = Ledger(index)
    ledger.plan([want(1)], lambda _: 1)
    ledger.withdraw(0)
    assert len(ledger.plan([want(1)], lambda _: 1)[0][0].slots) == 1


@given(st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 3), max_size=400)), max_size=8))
@settings(deadline=None, max_examples=50)
def test_equal_rows_count_as_often_as_they_are_there_at_one_time(steps):
    """Each step replaces what a part holds."""
    with Index(None) as index:
        ledger, held, asked, most = Ledger(index), {}, defaultdict(int), defaultdict(int)
        for part, numbers in steps:
            ledger.withdraw(part)
            held[part] = numbers
            owed, _ = ledger.plan([want(number) for number in numbers], lambda _: 1, part)
            for slot in (slot for one in owed for slot in one.slots):
                asked[int(slot.task, 16)] += 1
            for number in range(4):
                there = sum(numbers.count(number) for numbers in held.values())
                most[number] = max(most[number], there)
        assert {n: count for n, count in asked.items() if count} == {n: c for n, c in most.items() if c}
