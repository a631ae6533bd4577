"""Workers as real processes: what is leased ends once, whatever happens to them, and nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.engines.conftest import job

from rollmill.engines.processes import ProcessCrew
from rollmill.errors import ConfigError, ContractError, RunError
from rollmill.profiling.profile import Profile

PROGRAM = "rollmill.engines.program"


def workers() -> list[int]:
    """The worker processes that this process has, those among them that are zombies too."""
    children = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    return [int(pid) for pids in children for pid in pids if _is_worker(int(pid))]


def _is_worker(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_text()
    # A zombie has no words.
    return PROGRAM in words or not words


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


class Heard(list[str]):
    """What a crew says to people."""

    def of(self, words: str) -> list[str]:
        return [line for line in self if words in line]


@asynccontextmanager
async def crew_of(setup, count: int = 1, **options):
    said = Heard()
    async with ProcessCrew(setup, count, said.append, **options) as crew:
        crew.said = said
        yield crew


@pytest.fixture
def gate():
    """Hold the model's answers to some errands until it is opened."""

    class Gate:
        def __init__(self):
            self.opened = threading.Event()
            self.asked: list[str] = []

        def __call__(self, body: dict) -> str:
            self.asked.append(str(body["input"]))
            self.opened.wait(60)
            return "yes"

    gate = Gate()
    yield gate
    gate.opened.set()


async def test_all_that_is_leased_is_played(setup):
    async with crew_of(setup(), 2) as crew:
        played = await asyncio.gather(*(crew.play(job(number)) for number in range(60)))
        assert len(workers()) == 2
    assert [one.entry.slot.task_index for one in played] == list(range(60))
    assert {one.entry.reward for one in played} == {0.5}
    assert {one.entry.run for one in played} == {"r1"}


WRITTEN = ["1.50", "1e3", '"gr\u00fc\u00df \U0001f642"', r'"\u00fc \ud83d\ude42 \/"', "[ 1,  2 ]"]


async def test_a_row_keeps_its_bytes(setup):
    async with crew_of(setup()) as crew:
        for number, written in enumerate(WRITTEN):
            played = await crew.play(job(number, extra=written.encode()))
            assert b'"extra":' + written.encode() + b"," in played.row


async def test_a_row_of_many_megabytes_comes_back(setup):
    written = b'"' + b"x" * 20_000_000 + b'"'
    async with crew_of(setup()) as crew:
        played = await crew.play(job(1, extra=written))
    assert written in played.row


async def test_what_was_freed_before_anybody_waits_is_not_forgotten(setup):
    crew = ProcessCrew(setup(at_once=1), 1, print)
    crew.enter("agent")
    assert not crew.room("agent")
    crew.leave("agent")
    async with asyncio.timeout(5):
        await crew.changed()


async def test_what_has_entered_counts_before_it_is_leased(setup):
    async with crew_of(setup(), 2) as crew:
        entered = 0
        while crew.room("agent"):
            crew.enter("agent")
            entered += 1
    assert entered == 64


async def test_a_bound_of_an_environment_holds_for_all_workers(setup):
    async with crew_of(setup(at_once=3), 2) as crew:
        for _ in range(3):
            assert crew.room("agent")
            crew.enter("agent")
        assert not crew.room("agent")
        crew.leave("agent")
        assert crew.room("agent")


async def test_there_is_room_again_as_soon_as_leases_begin(setup, gate):
    async with crew_of(setup(gate, places=2)) as crew:
        playing = [asyncio.ensure_future(crew.play(job(number))) for number in range(34)]
        await until(lambda: len(gate.asked) == 2)
        assert not crew.room("agent")
        changed = asyncio.ensure_future(crew.changed())
        gate.opened.set()
        await asyncio.gather(*playing, changed)
        assert crew.room("agent")


async def test_a_worker_that_is_killed_fails_what_it_plays_and_not_what_waits(setup, gate):
    async with crew_of(setup(gate, places=2)) as crew:
        playing = [asyncio.ensure_future(crew.play(job(number))) for number in range(20)]
        await until(lambda: len(gate.asked) == 2)
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
        gate.opened.set()
        played = await asyncio.gather(*playing)
    failed = [one.entry for one in played if one.entry.failure]
    assert {entry.failure.kind for entry in failed} == {"worker_died"}
    assert all(entry.failure.retryable for entry in failed)
    assert len(failed) == 2
    assert {entry.run for entry in failed} == {"r1"}
    assert len(crew.said.of("killed by signal 9")) == 1


async def test_a_task_that_kills_its_worker_is_an_attempt_each_time(setup):
    async with crew_of(setup(), 2) as crew:
        for _ in range(2):
            played = await crew.play(job(1, "dies"))
            assert played.entry.failure.kind == "worker_died"
        played = await crew.play(job(2))
    assert played.entry.reward == 0.5


async def test_a_worker_whose_fork_holds_the_connection_open_is_missed_all_the_same(setup, tmp_path):
    async with crew_of(setup()) as crew:
        async with asyncio.timeout(30):
            played = await crew.play(job(1, "leaves a fork"))
        assert played.entry.failure.kind == "worker_died"
        os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)
        assert (await crew.play(job(2))).entry.reward == 0.5


async def test_what_a_killed_worker_had_started_dies_with_it(setup, tmp_path):
    async with crew_of(setup()) as crew:
        await crew.play(job(1, "leaves a child"))
        child = int((tmp_path / "child").read_text())
        await until(lambda: not alive(child))


async def test_workers_that_die_together_are_replaced_together(setup):
    async with crew_of(setup(), 3) as crew:
        first = set(workers())
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: len(set(workers()) - first) == 3)
        played = await asyncio.gather(*(crew.play(job(number)) for number in range(30)))
        # A lease may have been on its way when its worker died.
        assert {one.entry.reward for one in played} <= {0.5, None}
        played = await asyncio.gather(*(crew.play(job(number)) for number in range(30)))
    assert {one.entry.reward for one in played} == {0.5}


async def test_a_worker_that_is_killed_before_it_is_ready_is_replaced(setup):
    killed = asyncio.create_task(until(workers))
    crew = ProcessCrew(setup(), 1, print)
    starting = asyncio.create_task(crew.__aenter__())
    await killed
    for pid in workers():
        os.kill(pid, signal.SIGKILL)
    await starting
    assert (await crew.play(job(1))).entry.reward == 0.5
    await crew.__aexit__(None, None, None)


async def test_deaths_without_a_rollout_between_end_the_run(setup):
    async def all_die():
        for number in range(10):
            await crew.play(job(number, "dies"))

    async with crew_of(setup()) as crew:
        with pytest.raises(RunError, match="5 worker processes ended one after the other without one rollout between"):
            await all_die()
        # Whoever waits for room hears of it.
        assert crew.room("agent")


async def test_deaths_beside_a_worker_that_gets_on_do_not(setup):
    async with crew_of(setup(), 2) as crew:
        for number in range(7):
            await crew.play(job(number))
            assert (await crew.play(job(number, "dies"))).entry.failure.kind == "worker_died"


@pytest.mark.slow
async def test_a_worker_that_is_stopped_is_killed_and_replaced(setup, gate):
    async with crew_of(setup(gate), 2, silent_s=4) as crew:
        playing = [asyncio.ensure_future(crew.play(job(number))) for number in range(2)]
        await until(lambda: len(gate.asked) == 2)
        stopped, _ = workers()
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: stopped not in workers())
        gate.opened.set()
        played = await asyncio.gather(*playing)
        assert [one.entry.failure.kind for one in played if one.entry.failure] == ["worker_died"]
    assert len(crew.said.of("said nothing for 4 s")) == 1


@pytest.mark.slow
async def test_a_command_that_was_stopped_itself_does_not_take_its_workers_for_hung(setup):
    async with crew_of(setup(), 1, silent_s=2) as crew:
        before = workers()
        # As Ctrl-Z does it: nothing of this process runs, and no time seems to pass.
        threading.Event().wait(4)
        assert (await crew.play(job(1))).entry.reward == 0.5
        assert workers() == before
    assert not crew.said


async def test_a_fault_of_one_rollout_does_not_end_those_beside_it(setup, gate):
    async with crew_of(setup(gate), 1) as crew:
        beside = asyncio.ensure_future(crew.play(job(1)))
        await until(lambda: gate.asked)
        with pytest.raises(ContractError, match="task 2: an agent without an end"):
            await crew.play(job(2, "breaks its contract"))
        gate.opened.set()
        assert (await beside).entry.reward == 0.5


async def test_a_fault_of_all_workers_is_raised_when_they_start(setup):
    wrong = setup()
    wrong.instances["world"].fields["folder"] = 5
    with pytest.raises(RunError, match="TypeError"):
        async with crew_of(wrong, 2):
            raise AssertionError("it started")
    assert workers() == []


async def test_a_model_that_is_not_there_is_the_callers_fault(setup):
    wrong = setup()
    wrong.instances["policy"].fields["openai_base_url"] = "http://127.0.0.1:9/v1"
    with pytest.raises(ConfigError, match="cannot be reached"):
        async with crew_of(wrong, 3):
            raise AssertionError("it started")
    assert workers() == []


async def test_a_drain_gives_back_what_has_not_begun(setup, gate):
    async with crew_of(setup(gate, places=2), 1) as crew:
        playing = [asyncio.ensure_future(crew.play(job(number))) for number in range(10)]
        await until(lambda: len(gate.asked) == 2)
        crew.drain()
        gate.opened.set()
        played = await asyncio.gather(*playing)
        assert (await crew.play(job(11))).entry.failure.kind == "drained"
    kinds = [one.entry.failure and one.entry.failure.kind for one in played]
    assert kinds == [None] * 2 + ["drained"] * 8


async def test_a_drain_while_no_worker_is_left_lets_nobody_wait(setup, gate):
    async with crew_of(setup(gate, places=1), 1) as crew:
        playing = [asyncio.ensure_future(crew.play(job(number))) for number in range(5)]
        await until(lambda: gate.asked)
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
        crew.drain()
        async with asyncio.timeout(20):
            kinds = [one.entry.failure.kind for one in await asyncio.gather(*playing)]
    assert sorted(kinds) == ["drained"] * 4 + ["worker_died"]


async def test_retries_are_counted_to_the_last_and_survive_their_worker(setup):
    heard = set()

    def busy_at_first(body: dict) -> str | int:
        asked = str(body["input"])
        new = asked not in heard
        heard.add(asked)
        return 503 if new else "yes"

    async with crew_of(setup(busy_at_first), 1) as crew:
        await asyncio.gather(*(crew.play(job(number)) for number in range(3)))
        assert crew.pressure().retries == {"overload": 3}
        await crew.play(job(9, "dies"))
        await crew.play(job(1))
        assert crew.pressure().retries == {"overload": 3}


async def test_environments_are_closed_when_all_is_done(setup, tmp_path):
    async with crew_of(setup(), 2) as crew:
        await crew.play(job(1))
        pids = workers()
    assert {path.name for path in tmp_path.glob("closed-*")} == {f"closed-{pid}" for pid in pids}


async def test_workers_tell_a_profile_what_they_have_measured(setup):
    profile = Profile()
    async with crew_of(setup(), 2, profile=profile) as crew:
        await asyncio.gather(*(crew.play(job(number)) for number in range(20)))
    found = profile.measured()
    assert (found.processes, found.lost) == (3, 0)
    assert found.stages["rollout"][""].count == found.stages["model"]["policy"].count == 20
    assert {one.name: one.calls for one in found.functions}["World.verify"] == 20


async def test_a_worker_that_died_has_told_nothing(setup):
    profile = Profile()
    async with crew_of(setup(), 1, profile=profile) as crew:
        await crew.play(job(1, "dies"))
        await crew.play(job(2))
    found = profile.measured()
    assert (found.processes, found.lost) == (2, 1)
    assert found.stages["rollout"][""].count == 1


async def test_nothing_is_left_of_workers_that_ended_or_were_killed(setup):
    one = setup()
    async with crew_of(one) as crew:
        await crew.play(job(1))
    before = descriptors()
    for _ in range(2):
        async with crew_of(one, 2) as crew:
            await crew.play(job(1, "dies"))
            await crew.play(job(2))
    assert workers() == []
    assert descriptors() == before


@pytest.mark.parametrize("moment_s", [0.0, 0.02, 0.2])
async def test_a_start_that_is_cancelled_leaves_nobody(setup, moment_s):
    async def use():
        async with crew_of(one, 2):
            await asyncio.Event().wait()

    one, before = setup(), descriptors()
    using = asyncio.create_task(use())
    await asyncio.sleep(moment_s)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert workers() == []
    assert descriptors() <= before


async def test_an_end_while_a_worker_is_being_replaced_leaves_nobody(setup):
    async with crew_of(setup()) as crew:
        (first,) = workers()
        os.kill(first, signal.SIGKILL)
        await until(lambda: [pid for pid in workers() if pid != first and _is_worker(pid)])
    assert workers() == []
    assert crew.said.of("killed by signal 9")


async def test_files_in_the_working_directory_are_no_modules(setup, tmp_path, monkeypatch):
    for name in ("selectors", "msgspec", "rollmill"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is somebody else')")
    monkeypatch.chdir(tmp_path)
    async with crew_of(setup()) as crew:
        assert (await crew.play(job(1))).entry.reward == 0.5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_that_all_processes_of_a_job_get_are_the_commands_to_hear(setup, number):
    async with crew_of(setup()) as crew:
        (pid,) = workers()
        os.kill(pid, number)
        assert (await crew.play(job(1))).entry.reward == 0.5
        assert workers() == [pid]


async def test_what_an_environment_starts_is_not_deaf_to_signals(setup):
    async with crew_of(setup()) as crew:
        played = await crew.play(job(1, "stops a child"))
    assert played.entry.metrics["ended_by"] == signal.SIGTERM
