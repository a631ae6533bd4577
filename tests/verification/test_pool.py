"""Rewards in processes of their own: answered, bounded, killed, and never in one another's way."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import rollmill as rm
from rollmill import plugins
from rollmill.profiling.profile import Profile
from rollmill.profiling.spans import FOR_A_PROCESS, Spans
from rollmill.verification.pool import RewardPool


class Order(rm.Task):
    want: dict[str, int]


ORDER = Order.of("Buy two teas.", want={"tea": 2})


def computed(**options: Any) -> Any:
    return rm.reward(cpu=True, **{"timeout_s": 30.0} | options)


class World(rm.Environment[Order]):
    """Rewards of every temper. `snapshot` is what a test gives them."""

    @computed()
    @staticmethod
    def given(task: Order, trajectory: rm.Trajectory, snapshot: Any) -> float:
        assert task.want == {"tea": 2}
        assert task.prompt == trajectory.prompt == (rm.user("Buy two teas."),)
        assert [type(item) for item in trajectory.items] == [rm.FunctionCall, rm.FunctionCallOutput, rm.Message]
        assert (trajectory.turns, trajectory.tool_calls, trajectory.usage) == (2, 1, rm.Usage(30, 12))
        return float(snapshot["cart"] == task.want and trajectory.answer == "Here.")

    @computed()
    def echo(task: Order, trajectory: rm.Trajectory, snapshot: Any) -> Any:
        return snapshot

    @computed()
    @staticmethod
    def evaluated(task: Order, trajectory: rm.Trajectory, snapshot: str) -> Any:
        return eval(snapshot)

    @computed()
    @staticmethod
    def talkative(task: Order, trajectory: rm.Trajectory, snapshot: Any) -> float:
        print('{"value": 99.0}')
        os.write(1, b'{"value": 99.0}\n')
        os.write(2, b"warning\n")
        subprocess.run(["echo", '{"value": 99.0}'], check=True)
        return 0.5

    @computed()
    @staticmethod
    def curious(task: Order, trajectory: rm.Trajectory, snapshot: Any) -> float:
        heard = subprocess.run(["cat"], check=True, stdout=subprocess.PIPE).stdout
        return float(len(heard) + len(sys.stdin.read()))

    @computed()
    @staticmethod
    def broken(task: Order, trajectory: rm.Trajectory, snapshot: Any) -> float:
        raise ZeroDivisionError("nothing to divide by")

    @computed(timeout_s=0.3)
    @staticmethod
    def endless(task: Order, trajectory: rm.Trajectory, snapshot: str) -> float:
        Path(snapshot).write_text(str(os.getpid()))
        return float(sum(range(10**12)))

    @computed(timeout_s=0.5)
    @staticmethod
    def parent(task: Order, trajectory: rm.Trajectory, snapshot: str) -> float:
        child = subprocess.Popen(["sleep", "600"])
        Path(snapshot).write_text(str(child.pid))
        return float(child.wait())

    @computed()
    @staticmethod
    def exits(task: Order, trajectory: rm.Trajectory, snapshot: int) -> float:
        os._exit(snapshot)

    @computed(timeout_s=0.5)
    @staticmethod
    def deserts(task: Order, trajectory: rm.Trajectory, snapshot: str) -> float:
        Path(snapshot).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        os._exit(1)

    @computed()
    @staticmethod
    def process(task: Order, trajectory: rm.Trajectory, snapshot: Any) -> float:
        return os.getpid()

    @computed()
    @staticmethod
    def meeting(task: Order, trajectory: rm.Trajectory, snapshot: list[str]) -> float:
        mine, other = map(Path, snapshot)
        mine.touch()
        while not other.exists():
            time.sleep(0.005)
        return 1.0


class Inherited(World):
    """Has its rewards from another class."""


class Plain:
    """A reward that is nobody's yet."""

    @computed()
    @staticmethod
    def wants(task: Any, trajectory: rm.Trajectory, snapshot: Any) -> float:
        return float(sum(task.want.values()))


class Mixed(Plain, rm.Environment[Order]):
    """Has its reward from a plain class, and its tasks from here."""


async def ask(pool: RewardPool, reward: str, snapshot: Any = None, world: type[rm.Environment] = World) -> float:
    return await pool(world.rewards[reward], ORDER, rm.Trajectory(ORDER.prompt), snapshot)


async def failure_of(pool: RewardPool, reward: str, snapshot: Any = None) -> rm.Failure:
    with pytest.raises(rm.RolloutError) as caught:
        await ask(pool, reward, snapshot)
    assert caught.value.failure.where == "verifier"
    return caught.value.failure


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[RewardPool]:
    async with RewardPool(1) as pool:
        yield pool


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    # One that has ended, and that nobody has asked about yet, is a zombie.
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(done: Any) -> None:
    deadline = time.monotonic() + 30
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done()


def written(path: Path) -> int:
    """The process that a reward wrote down, as soon as it has."""
    wait_until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


async def appears(path: Path) -> None:
    await asyncio.to_thread(wait_until, path.exists)


# Answers.


async def test_a_reward_gets_the_task_the_trajectory_and_the_snapshot(pool: RewardPool) -> None:
    trajectory = rm.Trajectory(ORDER.prompt)
    trajectory.add_reply(rm.Reply((rm.call("take", item="tea"),), rm.Usage(10, 5)))
    trajectory.add_output(rm.FunctionCallOutput(call_id="call_1", output="ok"))
    trajectory.add_reply(rm.Reply((rm.assistant("Here."),), rm.Usage(20, 7)))
    assert await pool(World.rewards["given"], ORDER, trajectory, {"cart": {"tea": 2}}) == 1.0


@pytest.mark.parametrize("value", [0.25, 3, True, False, -1.5])
async def test_a_number_or_a_truth_value_comes_back(pool: RewardPool, value: float) -> None:
    assert await ask(pool, "echo", value) == value


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("'1'", "returned str; a reward is a number or a truth value"),
        ("None", "returned NoneType"),
        ("float('nan')", "a reward is a finite number"),
        ("float('inf')", "a reward is a finite number"),
    ],
)
async def test_anything_else_is_a_failure(pool: RewardPool, expression: str, what: str) -> None:
    failure = await failure_of(pool, "evaluated", expression)
    assert failure.kind == "error"
    assert what in failure.detail


async def test_an_exception_is_a_failure_with_its_place_and_the_process_goes_on(pool: RewardPool) -> None:
    process = await ask(pool, "process")
    failure = await failure_of(pool, "broken")
    assert (failure.kind, failure.retryable) == ("error", False)
    assert failure.detail.startswith("broken: ZeroDivisionError: nothing to divide by (test_pool.py:")
    assert await ask(pool, "process") == process


async def test_what_a_reward_prints_is_no_answer(pool: RewardPool) -> None:
    assert [await ask(pool, "talkative") for _ in range(2)] == [0.5, 0.5]
    assert await ask(pool, "echo", 0.25) == 0.25


async def test_what_a_reward_reads_is_no_job(pool: RewardPool) -> None:
    assert await ask(pool, "curious") == 0
    assert await ask(pool, "echo", 0.25) == 0.25


async def test_a_snapshot_that_is_no_json_is_said_and_disturbs_nobody(pool: RewardPool) -> None:
    with pytest.raises(TypeError):
        await ask(pool, "echo", object())
    assert await ask(pool, "echo", 0.25) == 0.25


async def test_a_large_trajectory_fits(pool: RewardPool) -> None:
    trajectory = rm.Trajectory(ORDER.prompt)
    trajectory.items = [rm.assistant("x" * 1_000_000)] * 8
    assert await pool(World.rewards["echo"], ORDER, trajectory, 1) == 1


async def test_it_is_what_a_rollout_is_played_with(pool: RewardPool) -> None:
    rollout = await rm.play(ORDER, Mixed, rm.ToolAgent(), rm.Scripted("done"), compute=pool)
    assert rollout.reward == rm.Reward(2.0, {"wants": 2.0})


@pytest.mark.parametrize(("world", "reward", "value"), [(Inherited, "echo", 2), (Mixed, "wants", 2)])
async def test_a_reward_that_was_inherited_knows_the_tasks_of_its_heir(
    pool: RewardPool, world: type[rm.Environment], reward: str, value: float
) -> None:
    assert await ask(pool, reward, value, world) == value


async def test_a_class_that_no_other_process_can_find_is_refused(pool: RewardPool) -> None:
    class Local(rm.Environment):
        @computed()
        @staticmethod
        def hidden(task: Any, trajectory: Any, snapshot: Any) -> float:
            return 1.0

    with pytest.raises(rm.ContractError, match=r"Local.hidden: .* needs a class at the top of a file"):
        await ask(pool, "hidden", world=Local)


# Deadlines and crashes.


async def test_a_computation_in_c_is_killed_at_its_deadline(pool: RewardPool, tmp_path: Path) -> None:
    failure = await failure_of(pool, "endless", str(tmp_path / "pid"))
    assert failure.kind == "timeout"
    assert failure.detail == "endless computed for longer than 0.3 s and was killed"
    assert not lives(written(tmp_path / "pid"))
    assert await ask(pool, "echo", 0.25) == 0.25


async def test_what_a_reward_started_is_killed_with_it(pool: RewardPool, tmp_path: Path) -> None:
    assert (await failure_of(pool, "parent", str(tmp_path / "pid"))).kind == "timeout"
    child = written(tmp_path / "pid")
    await asyncio.to_thread(wait_until, lambda: not lives(child))


async def test_what_a_reward_started_is_killed_when_its_process_has_gone(pool: RewardPool, tmp_path: Path) -> None:
    await failure_of(pool, "deserts", str(tmp_path / "pid"))
    child = written(tmp_path / "pid")
    await asyncio.to_thread(wait_until, lambda: not lives(child))


@pytest.mark.parametrize("code", [0, 3])
async def test_a_process_that_ends_is_a_crash_and_is_replaced(pool: RewardPool, code: int) -> None:
    failure = await failure_of(pool, "exits", code)
    assert (failure.kind, failure.detail) == ("crash", f"exits: its process ended with {code}")
    assert await ask(pool, "echo", 0.25) == 0.25


async def test_many_crashes_in_a_row_are_many_failures(pool: RewardPool) -> None:
    for code in range(1, 9):
        assert (await failure_of(pool, "exits", code)).detail.endswith(f"ended with {code}")


async def test_a_process_that_was_killed_while_it_was_idle_is_replaced(pool: RewardPool) -> None:
    process = int(await ask(pool, "process"))
    os.kill(process, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: not lives(process))
    await asyncio.sleep(0.05)
    assert await ask(pool, "process") != process


async def test_a_cancelled_job_is_killed_and_does_not_answer_the_next(pool: RewardPool, tmp_path: Path) -> None:
    await ask(pool, "process")
    job = asyncio.create_task(ask(pool, "meeting", [str(tmp_path / "pid"), str(tmp_path / "never")]))
    await appears(tmp_path / "pid")
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert [await ask(pool, "echo", value) for value in (1, 2, 3)] == [1, 2, 3]


async def test_a_job_that_is_cancelled_while_it_waits_takes_no_place(pool: RewardPool, tmp_path: Path) -> None:
    first = asyncio.create_task(ask(pool, "meeting", [str(tmp_path / "a"), str(tmp_path / "b")]))
    second = asyncio.create_task(ask(pool, "echo", 1))
    await appears(tmp_path / "a")
    second.cancel()
    (tmp_path / "b").touch()
    assert await first == 1
    assert await ask(pool, "echo", 2) == 2


# Files.

SLOW_FILE = """
import time

import rollmill as rm

time.sleep({seconds})


class Graded(rm.Environment):
    @rm.reward(cpu=True, timeout_s={timeout_s})
    def graded(task, trajectory, snapshot):
        return task["grade"]
"""


def graded(path: Path, seconds: float, timeout_s: float) -> tuple[type[rm.Environment], rm.Task]:
    path.write_text(SLOW_FILE.format(seconds=seconds, timeout_s=timeout_s))
    row = b'{"responses_create_params": {"input": "?"}, "grade": 0.75}'
    return plugins.environment(f"{path}:Graded"), rm.read_task(row, rm.Task)


async def test_a_deadline_does_not_count_the_import(pool: RewardPool, tmp_path: Path) -> None:
    world, task = graded(tmp_path / "graded_slowly.py", seconds=1.2, timeout_s=1.0)
    assert await pool(world.rewards["graded"], task, rm.Trajectory(), None) == 0.75


async def test_a_file_that_does_not_import_in_time_is_named(
    pool: RewardPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, task = graded(tmp_path / "graded_never.py", seconds=0, timeout_s=1.0)
    (tmp_path / "graded_never.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr("rollmill.verification.pool._LOAD_S", 0.3)
    with pytest.raises(rm.RolloutError, match=r"graded: its file took longer than 0.3 s to import"):
        await pool(world.rewards["graded"], task, rm.Trajectory(), None)


async def test_a_file_that_no_longer_imports_is_named(pool: RewardPool, tmp_path: Path) -> None:
    world, task = graded(tmp_path / "graded_once.py", seconds=0, timeout_s=1.0)
    (tmp_path / "graded_once.py").write_text("import no_such_module\n")
    for _ in range(2):
        with pytest.raises(rm.RolloutError, match="graded: ModuleNotFoundError: No module named 'no_such_module'"):
            await pool(world.rewards["graded"], task, rm.Trajectory(), None)


async def test_a_package_of_the_same_name_is_not_taken_for_this_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / World.__module__.partition(".")[0]
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    async with RewardPool(1) as pool:
        assert await ask(pool, "echo", 0.25) == 0.25


# Places.


async def test_no_more_processes_than_places() -> None:
    async with RewardPool(2) as pool:
        processes = await asyncio.gather(*(ask(pool, "process") for _ in range(12)))
    assert 1 <= len(set(processes)) <= 2


async def test_places_compute_at_once(tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    async with RewardPool(2) as pool:
        assert await asyncio.gather(ask(pool, "meeting", [one, other]), ask(pool, "meeting", [other, one])) == [1, 1]


async def test_a_warm_process_is_used_again_before_another_is_started() -> None:
    async with RewardPool(4) as pool:
        assert len({await ask(pool, "process") for _ in range(4)}) == 1


# The end.


async def test_nothing_is_left_when_it_is_closed() -> None:
    async with RewardPool(2) as pool:
        processes = {int(pid) for pid in await asyncio.gather(*(ask(pool, "process") for _ in range(8)))}
        assert all(map(lives, processes))
    assert not any(map(lives, processes))


async def test_what_still_computes_is_killed_when_it_is_closed(tmp_path: Path) -> None:
    async with RewardPool(1) as pool:
        job = asyncio.create_task(failure_of(pool, "meeting", [str(tmp_path / "a"), str(tmp_path / "never")]))
        await appears(tmp_path / "a")
    assert (await job).kind == "crash"


async def test_a_pool_that_was_closed_can_be_entered_again() -> None:
    pool = RewardPool(1)
    for value in (1, 2):
        async with pool:
            assert await ask(pool, "echo", value) == value


# Profiles.


def calls_in(profile: Profile) -> dict[str, int]:
    return {one.name: one.calls for one in profile.measured().functions}


async def test_processes_tell_a_profile_what_they_have_computed() -> None:
    profile = Profile()
    async with RewardPool(2, profile) as pool:
        processes = await asyncio.gather(*(ask(pool, "process") for _ in range(8)))
        assert await ask(pool, "echo", 0.25) == 0.25
    assert calls_in(profile)["World.process"] == 8
    assert calls_in(profile)["World.echo"] == 1
    assert (profile.measured().processes, profile.measured().lost) == (1 + len(set(processes)), 0)


async def test_they_tell_now_and_then_while_they_compute() -> None:
    profile = Profile()
    async with RewardPool(1, profile) as pool:
        deadline = time.monotonic() + 60
        while "World.echo" not in calls_in(profile):
            assert time.monotonic() < deadline
            await ask(pool, "echo", 1)


async def test_a_process_that_was_killed_leaves_a_gap_that_is_counted(tmp_path: Path) -> None:
    profile = Profile()
    async with RewardPool(1, profile) as pool:
        await failure_of(pool, "endless", str(tmp_path / "pid"))
        await failure_of(pool, "exits", 3)
        assert await ask(pool, "echo", 0.25) == 0.25
    assert "World.endless" not in calls_in(profile)
    assert calls_in(profile)["World.echo"] == 1
    assert profile.measured().lost == 2


async def test_what_still_computes_when_it_is_closed_is_a_gap_too(tmp_path: Path) -> None:
    profile = Profile()
    async with RewardPool(1, profile) as pool:
        job = asyncio.create_task(failure_of(pool, "meeting", [str(tmp_path / "a"), str(tmp_path / "never")]))
        await appears(tmp_path / "a")
    assert (await job).kind == "crash"
    assert profile.measured().lost == 1


async def test_waiting_for_a_process_is_told_apart_from_computing(pool: RewardPool) -> None:
    trajectory = rm.Trajectory(ORDER.prompt)
    trajectory.spans = spans = Spans()
    await asyncio.gather(*(pool(World.rewards["echo"], ORDER, trajectory, 1) for _ in range(3)))
    assert spans.stages["verify"][FOR_A_PROCESS].count == 3


# Scripts.

SCRIPT = """
import asyncio, os
from pathlib import Path
import rollmill as rm
from rollmill.verification.pool import RewardPool

class Graded(rm.Environment):
    @rm.reward(cpu=True, timeout_s=1)
    def graded(task, trajectory, snapshot):
        if Path("endless").exists():
            Path("pid").write_text(str(os.getpid()))
            sum(range(10**12))
        return twice(0.5)

def twice(value):
    return value * 2

async def main():
    async with RewardPool(1) as pool:
        rollout = await rm.play(rm.Task.of("?"), Graded, rm.ToolAgent(), rm.Scripted("hi"), compute=pool)
        print(rollout.failure.detail if rollout.failure else rollout.reward.value)

"""
GUARDED = SCRIPT + "if __name__ == '__main__':\n    asyncio.run(main())\n"
UNGUARDED = SCRIPT + "asyncio.run(main())\n"


@contextmanager
def script(folder: Path, text: str, *, seconds: int | str = 20) -> Iterator[subprocess.Popen[str]]:
    """A script that is run as a person runs it. What it starts, however much, has seconds of computing and no more."""
    (folder / "script.py").write_text(text)
    command = ["sh", "-c", f'ulimit -t {seconds}; exec "$0" script.py', sys.executable]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_script_may_hold_its_own_environment(tmp_path: Path) -> None:
    with script(tmp_path, GUARDED) as process:
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("1.0\n", "")


def test_a_script_that_runs_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    with script(tmp_path, UNGUARDED) as process:
        out, err = process.communicate(timeout=60)
    assert "put what it does under `if __name__ == '__main__':`" in out, err


def test_a_process_does_not_outlive_a_script_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "endless").touch()
    with script(tmp_path, GUARDED, seconds="unlimited") as process:
        worker = written(tmp_path / "pid")
        process.kill()
    try:
        wait_until(lambda: not lives(worker))
    finally:
        if lives(worker):
            os.kill(worker, signal.SIGKILL)
