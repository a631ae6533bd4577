"""CPU time by function: counted by whoever wrote it, without waits, and read by people and by scripts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rollmill.profiling import functions
from rollmill.profiling.functions import Function, merged, table

BURNT_S = 0.005


def burn() -> None:
    began = time.thread_time()
    while time.thread_time() - began < BURNT_S:
        pass


class Base:
    async def patient(self) -> None:
        """It waits, lets others burn meanwhile, and burns once itself."""
        await asyncio.sleep(0.02)
        burn()
        await asyncio.sleep(0.02)


class Heir(Base):
    @staticmethod
    def still() -> None:
        burn()

    def summed(self) -> int:
        return sum(number for number in range(10))


@pytest.fixture
def profiled() -> Iterator[Callable[[], dict[str, Function]]]:
    """Measures from here on; calling it stops, and gives what was measured by name."""

    def stopped() -> dict[str, Function]:
        functions.stop()
        return {one.name: one for one in functions.measured()}

    functions.start()
    yield stopped
    functions.stop()


async def test_a_coroutine_counts_once_and_only_while_it_computes(profiled):
    await asyncio.gather(*(Heir().patient() for _ in range(10)))
    found = profiled()["Base.patient"]
    assert found.calls == 10
    # Ten of them slept 0.04 s, and each saw the others burn.
    assert 10 * BURNT_S <= found.total_s < 20 * BURNT_S
    assert found.own_s < found.total_s / 2


def test_a_function_has_the_name_that_it_was_written_under(profiled):
    Heir().still()
    Heir().summed()
    found = profiled()
    assert {"Heir.still", "Heir.summed", "Heir.summed.<genexpr>", "burn"} <= found.keys()
    assert found["burn"].file == __file__
    assert found["burn"].line == burn.__code__.co_firstlineno


def test_every_thread_counts(profiled):
    before = threading.Thread(target=burn)
    before.start()
    burn()
    before.join()
    assert profiled()["burn"].calls == 2


def test_what_goes_on_can_be_looked_at(profiled):
    for count in (1, 2):
        burn()
        assert next(one for one in functions.measured() if one.name == "burn").calls == count


def test_each_start_begins_with_nothing(profiled):
    burn()
    profiled()
    functions.start()
    Heir.still()
    assert profiled()["burn"].calls == 1


def test_a_process_is_profiled_once_at_a_time(profiled):
    with pytest.raises(RuntimeError, match="profiled already"):
        functions.start()


VERIFY = Function("Judge.verify", "/a/app.py", 7, 1024, 0.009755, 17.98387)
MUTE = Function("_mute", "/a/app.py", 90, 2048, 0.007473, 0.016538)


def test_several_processes_add_up_by_function():
    elsewhere = Function("Judge.verify", "/b/app.py", 7, 1, 1.0, 1.0)
    added = {(one.name, one.file): one for one in merged([[VERIFY, MUTE], [MUTE], [elsewhere, VERIFY]])}
    assert added[("Judge.verify", "/a/app.py")] == Function("Judge.verify", "/a/app.py", 7, 2048, 0.01951, 35.96774)
    assert added[("_mute", "/a/app.py")].calls == 4096
    assert added[("Judge.verify", "/b/app.py")] == elsewhere


def test_the_table_has_the_columns_that_scripts_split():
    header, *rows = table([MUTE, VERIFY]).splitlines()
    assert header.split() == ["name", "ncall", "tsub", "ttot", "tavg"]
    assert [row.rsplit(None, 4) for row in rows] == [
        ["Judge.verify", "1024", "0.009755", "17.98387", "0.017562"],
        ["_mute (app.py:90)", "2048", "0.007473", "0.016538", "0.000008"],
    ]
    assert {row.index(row.rsplit(None, 4)[1]) for row in rows} == {header.index("ncall")}


def test_methods_of_one_name_are_told_apart_by_their_place():
    other = Function("Judge.verify", "/b/other.py", 12, 1, 0.0, 0.0)
    _, first, second = table([VERIFY, other]).splitlines()
    assert first.startswith("Judge.verify (app.py:7) ")
    assert second.startswith("Judge.verify (other.py:12) ")


@pytest.mark.parametrize(("wanted", "count"), [("verify", 1), ("/a/", 2), ("nobody", 0)])
def test_functions_are_chosen_by_their_name_or_file(wanted, count):
    assert len(table([VERIFY, MUTE], wanted).splitlines()) == 1 + count
