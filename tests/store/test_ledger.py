import rollmill as rm
from rollmill.store.ledger import Ledger
from rollmill.store.schema import read_summary, write_row


class Echo(rm.Environment[rm.Task]):
    def verify(self, task, response):
        return 1.0


async def stored(slot: rm.Slot) -> object:
    rollout = await rm.play(rm.Task.of("x"), Echo, rm.ToolAgent(), rm.Scripted("ok"), slot=slot)
    return read_summary(write_row(rollout, "run"))


def indices(ledger: Ledger, *slots: rm.Slot, repeats: int = 2) -> list[tuple[int, int]]:
    indexed = [ledger.indexed(slot, repeats) for slot in slots]
    return [(slot.task_index, slot.rollout_index) for slot in indexed]


def test_tasks_get_the_next_index_and_repeats_count_up():
    slots = [rm.Slot("a", task, 0, repeat) for task in ("t1", "t2") for repeat in (0, 1)]
    assert indices(Ledger(), *slots) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_a_task_keeps_its_index_in_an_output(tmp_path):
    ledger = Ledger()
    ledger.add(await stored(rm.Slot("a", "t7", 0, 0, 7, 0)))
    assert indices(ledger, rm.Slot("a", "new", 0, 0), rm.Slot("a", "t7", 0, 1)) == [(0, 0), (7, 1)]


def test_a_row_that_names_its_index_keeps_it():
    ledger = Ledger()
    assert ledger.indexed(rm.Slot("a", "t", 0, 0), 1, 40).task_index == 40
    assert ledger.indexed(rm.Slot("a", "u", 0, 0), 1).task_index == 0


def test_a_task_that_stands_twice_in_the_input_is_one_group():
    slots = [rm.Slot("a", "t", occurrence, repeat) for occurrence in (0, 1) for repeat in (0, 1)]
    assert indices(Ledger(), *slots) == [(0, 0), (0, 1), (0, 2), (0, 3)]


async def test_tasks_that_a_crash_left_unrecorded_get_the_indices_they_had():
    slots = [rm.Slot("a", f"t{number}", 0, 0) for number in range(6)]
    ledger = Ledger()
    for number in (1, 4):
        ledger.add(await stored(rm.Slot("a", f"t{number}", 0, 0, number, 0)))
    assert indices(ledger, *slots) == [(number, 0) for number in range(6)]


async def test_more_repeats_of_a_doubled_task_take_free_indices():
    ledger = Ledger()
    for occurrence in (0, 1):
        ledger.add(await stored(rm.Slot("a", "t", occurrence, 0, 0, occurrence)))
    more = [rm.Slot("a", "t", occurrence, 1) for occurrence in (0, 1)]
    assert indices(ledger, *more, repeats=2) == [(0, 2), (0, 3)]


async def test_a_slot_counts_once():
    ledger = Ledger()
    row = await stored(rm.Slot("a", "t", 0, 0))
    assert ledger.add(row)
    assert not ledger.add(row)
    assert ledger.doubled == 1
    assert ledger.holds(rm.Slot("a", "t", 0, 0, 99, 99))
    assert not ledger.holds(rm.Slot("b", "t", 0, 0))
