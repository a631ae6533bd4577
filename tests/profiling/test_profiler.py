"""A profiler, as a service uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollmill as rm
from rollmill.errors import ConfigError
from rollmill.profiling.functions import Function
from rollmill.profiling.profile import Measured, Profile
from rollmill.profiling.profiler import Profiler
from rollmill.profiling.spans import Spans
from rollmill.types import FunctionCall


class Shop(rm.Environment):
    @rm.tool
    def look(self, shelf: str) -> str:
        """Look at a shelf."""
        return shelf

    @rm.reward
    async def right(self) -> bool:
        return True

    @rm.reward(weight=0)
    def broken(self) -> bool:
        raise ZeroDivisionError


@pytest.fixture
def profiler(tmp_path: Path) -> Iterator[Profiler]:
    profiler = Profiler("shop", tmp_path / "Shop___shop")
    profiler.start()
    yield profiler
    profiler.stop()


def called(name: str) -> FunctionCall:
    return FunctionCall(name=name, arguments='{"shelf": "top"}', call_id="1")


async def test_a_service_profiles_its_tools_and_rewards_and_can_be_asked_meanwhile(profiler, tmp_path):
    world = Shop(rm.Task.of("?"))
    world.trajectory.spans = profiler.spans
    await world.call(called("look"))
    first = profiler.page()
    await world.call(called("look"))
    with pytest.raises(ZeroDivisionError):
        await world.score(None)
    assert {name: one.count for name, one in profiler.spans.stages["tools"].items()} == {"look": 2}
    # What failed took its time, too.
    assert {name: one.count for name, one in profiler.spans.stages["verify"].items()} == {"right": 1, "broken": 1}
    path = profiler.write()
    assert path == tmp_path / "Shop___shop" / "shop.log"
    for text, calls in ((first, "1"), (path.read_text(), "2")):
        (line,) = (line for line in text.splitlines() if line.startswith("Shop.look "))
        assert line.split()[1] == calls
    assert list(path.parent.iterdir()) == [path]


async def test_a_rollout_tells_its_stages_and_its_row_keeps_its_fields(profiler):
    class Timed(rm.Environment):
        async def setup(self) -> None:
            with self.trajectory.timed("tools", "warm up"):
                pass

        @rm.reward
        def right(self) -> bool:
            return True

    rollout, silent = [
        await rm.play(rm.Task.of("?"), Timed, rm.ToolAgent(), rm.Scripted("hi"), spans=spans)
        for spans in (profiler.spans, None)
    ]
    assert rollout.seconds.keys() == silent.seconds.keys() == {"setup", "tools", "model", "play", "verify"}
    stages = profiler.spans.stages
    assert {stage: list(names) for stage, names in stages.items()} == {
        "held": ["setup", "verify right"],
        "tools": ["warm up"],
        "setup": [""],
        "play": [""],
        "verify": ["right", ""],
        "rollout": [""],
    }
    assert {one.count for names in stages.values() for one in names.values()} == {1}


class Mixed(rm.Environment):
    """What its functions wait for, and what they hold up meanwhile."""

    async def setup(self) -> None:
        time.sleep(0.02)

    @rm.tool
    async def wait(self) -> str:
        """Wait twice, and hold everything up between."""
        await asyncio.sleep(0.02)
        time.sleep(0.02)
        await asyncio.sleep(0.02)
        return "waited"

    @rm.tool
    async def hang(self) -> str:
        """Wait for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            self.hung = True
        return ""

    def verify(self, task: rm.Task, response: rm.Response) -> float:
        time.sleep(0.02)
        return 1.0


async def test_what_holds_everything_up_is_told_from_what_waits():
    spans = Spans()
    model = rm.Scripted(rm.call("wait"), "done")
    rollout = await rm.play(rm.Task.of("?"), Mixed, rm.ToolAgent(), model, spans=spans)
    assert rollout.reward.value == 1
    held = {what: one.total_s for what, one in spans.stages["held"].items()}
    assert held.keys() == {"setup", "tool wait", "verify"}
    assert all(seconds >= 0.02 for seconds in held.values())
    assert spans.stages["tools"]["wait"].total_s >= held["tool wait"] + 0.04


async def test_what_is_watched_can_be_cancelled():
    world = Mixed(rm.Task.of("?"))
    world.trajectory.spans = spans = Spans()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await world.call(FunctionCall(name="hang", call_id="1"))
    assert world.hung
    assert spans.stages["held"]["tool hang"].count == 1


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_played(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigError, match=r"profiling_results_dirpath: .*taken/shop cannot be made: Not a directory"):
        Profiler("shop", tmp_path / "taken" / "shop").start()


def test_what_another_process_tells_takes_the_place_of_what_it_told_before(profiler):
    take = Function("Elsewhere.take", "/elsewhere.py", 1, 3, 0.1, 0.2)
    spans = Spans()
    spans.add("model", 1.0, "policy")
    for calls in (1, 3):
        told = Measured(spans.stages, [Function("Elsewhere.take", "/elsewhere.py", 1, calls, 0.1, 0.2)], cores=0.9)
        profiler.heard("it", told)
    profiler.heard("another", Measured(spans.stages))
    profiler.lose()
    found = profiler.measured()
    assert take in found.functions
    assert found.stages["model"]["policy"].count == 2
    assert (found.processes, found.lost, found.cores) == (3, 1, 0.9)


def test_a_process_that_plays_nothing_is_not_the_busy_one():
    profile = Profile()
    profile.start()
    profile.stop()
    assert profile.measured().cores == 0.0


def test_functions_can_be_chosen(tmp_path):
    profiler = Profiler("shop", tmp_path, required_str="test_profiler.py")
    profiler.start()
    called("look")
    profiler.stop()
    rows = profiler.page().partition("\nname ")[2].splitlines()[1:]
    assert rows[0].startswith("called (test_profiler.py:")
    assert not [row for row in rows[1:] if "test_profiler.py" not in row]
