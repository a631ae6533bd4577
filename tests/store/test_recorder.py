import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec import Raw
from tests.store.rows import begun, die, failed, indexed, opened, owed, rewarded, rows_at

import rollmill as rm
from rollmill.profiling.spans import Spans
from rollmill.store.recorder import COMMIT_ROLLOUTS, Recorder

each_durability = pytest.mark.parametrize("durability", ["process", "os", "power"])
each_kind = pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])

MADE = [rewarded(f"t{number}", 0, number) for number in range(COMMIT_ROLLOUTS + 50)]
NAMES = [f"t{number}" for number in range(len(MADE))]


async def record(recorder: Recorder, *made) -> None:
    """Many rollouts that end at the same time."""
    async with asyncio.TaskGroup() as group:
        for one in made:
            group.create_task(recorder.rewarded(one.entry, one.row))


def nowhere(store) -> None:
    """From here on the disk of the output takes nothing: there is none under a null device."""
    with Path("/dev/null").open("ab") as device:
        os.dup2(device.fileno(), store.journal._file._file)


def full(store) -> None:
    with Path("/dev/full").open("ab") as device:
        os.dup2(device.fileno(), store.journal._file._file)


@each_durability
@each_kind
async def test_what_was_recorded_is_in_the_output_and_in_the_index(tmp_path, name, durability):
    with opened(tmp_path / name) as store:
        async with Recorder(store, durability) as recorder:
            await record(recorder, *MADE)
            await recorder.failed(failed("f", 0, 999), Raw(b"{}"), final=False)
            await recorder.failed(failed("f", 0, 999), Raw(b"{}"), final=True)
        assert len(indexed(store)) == len(MADE) + 1
        assert rows_at(store) == [made.row for made in MADE]
        assert (store.totals.rewarded, store.totals.failed) == (len(MADE), 1)
    with opened(tmp_path / name) as store:
        assert owed(store, *NAMES, "f", "g") == ["g"]
        assert store.found.doubled == 0


@each_durability
@each_kind
def test_what_it_returned_from_survives_the_death_of_the_process(tmp_path, name, durability):
    path = tmp_path / name
    program = textwrap.dedent(
        f"""
        import asyncio, os, signal
        from pathlib import Path
        from msgspec import Raw
        from rollmill.store.recorder import Recorder
        from tests.store.rows import begun, failed, rewarded

        async def main():
            async with Recorder(begun(Path({str(path)!r})), {durability!r}) as recorder:
                for number in range(5):
                    made = rewarded(f"t{{number}}", 0, number)
                    await recorder.rewarded(made.entry, made.row)
                await recorder.failed(failed("t5", 0, 5), Raw(b"null"), final=True)
                await asyncio.sleep(0)
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    with opened(path) as store:
        assert owed(store, *NAMES[:7]) == ["t6"]


async def test_power_means_that_it_waits_for_the_disk(tmp_path):
    with opened(tmp_path / "a.jsonl") as store:
        synced = []
        sync = store.journal._file.sync

        def noted() -> None:
            sync()
            synced.append(store.journal.size)

        store.journal._file.sync = noted
        async with Recorder(store, "power") as recorder:
            for made in MADE[:5]:
                await recorder.rewarded(made.entry, made.row)
                assert synced[-1] == store.journal.size


@each_kind
async def test_many_that_wait_for_the_disk_wait_for_it_together(tmp_path, name):
    with opened(tmp_path / name) as store:
        synced = []
        sync = store.journal._file.sync
        store.journal._file.sync = lambda: synced.append(sync())
        async with Recorder(store, "power") as recorder:
            await record(recorder, *MADE)
            assert len(synced) < 5


async def test_a_full_group_is_committed_without_waiting_for_more(tmp_path):
    with opened(tmp_path / "a.jsonl") as store:
        async with Recorder(store, "os") as recorder:
            recorder._patience_s = 3600.0
            await record(recorder, *MADE[: COMMIT_ROLLOUTS - 1])
            await asyncio.sleep(0)
            assert indexed(store) == []
            await record(recorder, MADE[COMMIT_ROLLOUTS])
            while len(indexed(store)) < COMMIT_ROLLOUTS:
                await asyncio.sleep(0)


async def test_a_small_group_is_committed_after_a_while(tmp_path):
    with opened(tmp_path / "a.jsonl") as store:
        async with Recorder(store, "os") as recorder:
            await record(recorder, *MADE[:3])
            while len(indexed(store)) < 3:
                await asyncio.sleep(0.01)


async def test_commit_brings_everything_to_the_index_at_once(tmp_path):
    with opened(tmp_path / "a.jsonl.zst") as store:
        async with Recorder(store) as recorder, asyncio.TaskGroup() as group:
            group.create_task(recorder.rewarded(MADE[0].entry, MADE[0].row))
            await asyncio.sleep(0)
            recorder.commit()
            assert rows_at(store) == [MADE[0].row]


@each_durability
async def test_a_disk_that_fails_is_heard_of_by_everybody(tmp_path, durability):
    store = begun(tmp_path / "a.jsonl")
    nowhere(store)
    recorder = Recorder(store, durability)
    await recorder.__aenter__()
    waiting = [asyncio.create_task(recorder.rewarded(made.entry, made.row)) for made in MADE[:5]]
    await asyncio.wait(waiting)
    if durability == "power":
        assert {str(task.exception()) for task in waiting} == {
            f"{store.path}: cannot be brought to the disk: Invalid argument"
        }
    if durability != "process":
        while recorder._error is None:
            await asyncio.sleep(0.01)
        with pytest.raises(rm.StoreError, match="cannot be brought to the disk"):
            await recorder.rewarded(MADE[9].entry, MADE[9].row)
        with pytest.raises(rm.StoreError, match="cannot be brought to the disk"):
            recorder.commit()
        with pytest.raises(rm.StoreError, match="cannot be brought to the disk"):
            await recorder.__aexit__(None, None, None)
    else:
        await recorder.__aexit__(None, None, None)
    with pytest.raises(rm.StoreError, match="cannot be brought to the disk"):
        store.close()


async def test_an_output_on_a_full_disk_refuses_and_indexes_nothing(tmp_path):
    store = begun(tmp_path / "a.jsonl")
    recorder = Recorder(store)
    await recorder.__aenter__()
    await recorder.rewarded(MADE[0].entry, MADE[0].row)
    await asyncio.sleep(0)
    kept = os.dup(store.journal._file._file)
    full(store)
    await recorder.rewarded(MADE[1].entry, MADE[1].row)
    with pytest.raises(rm.StoreError, match="cannot append: No space left on device"):
        await recorder.until_broken()
    os.dup2(kept, store.journal._file._file)
    os.close(kept)
    for again in (lambda: recorder.rewarded(MADE[2].entry, MADE[2].row), lambda: recorder.__aexit__(None, None, None)):
        with pytest.raises(rm.StoreError, match="cannot append: No space left on device"):
            await again()
    store.close()
    with opened(store.path) as store:
        assert owed(store, "t0", "t1", "t2") == ["t1", "t2"]
        assert rows_at(store) == [MADE[0].row]


async def test_a_frame_that_a_full_disk_did_not_take_is_in_no_index(tmp_path):
    store = begun(tmp_path / "a.jsonl.zst")
    recorder = Recorder(store)
    await recorder.__aenter__()
    await recorder.rewarded(MADE[0].entry, MADE[0].row)
    full(store)
    waiting = [asyncio.create_task(recorder.rewarded(made.entry, made.row)) for made in MADE[1:4]]
    await asyncio.wait(waiting)
    assert all("No space left" in str(task.exception()) for task in waiting)
    with pytest.raises(rm.StoreError, match="No space left"):
        await recorder.__aexit__(None, None, None)
    die(store)
    with opened(store.path) as store:
        assert owed(store, "t0", "t1", "t2", "t3") == ["t1", "t2", "t3"]


@each_durability
async def test_an_index_that_fails_is_heard_of_by_everybody_and_made_anew(tmp_path, durability):
    store = begun(tmp_path / "a.jsonl")
    recorder = Recorder(store, durability)
    await recorder.__aenter__()
    store.index._connection.execute("DROP TABLE rollout")
    waiting = [asyncio.create_task(recorder.rewarded(made.entry, made.row)) for made in MADE[:5]]
    await asyncio.wait(waiting)
    while recorder._error is None:
        await asyncio.sleep(0.01)
    if durability == "power":
        assert all("no such table" in str(task.exception()) for task in waiting)
    with pytest.raises(rm.StoreError, match="no such table"):
        await recorder.failed(failed("x"), Raw(b"{}"), final=False)
    with pytest.raises(rm.StoreError, match="no such table"):
        await recorder.__aexit__(None, None, None)
    store.close()
    with opened(store.path) as store:
        assert owed(store, *NAMES[:6]) == ["t5"]


async def test_an_error_on_the_way_out_is_raised(tmp_path):
    store = begun(tmp_path / "a.jsonl")
    recorder = Recorder(store)
    await recorder.__aenter__()
    await recorder.rewarded(MADE[0].entry, MADE[0].row)
    nowhere(store)
    with pytest.raises(rm.StoreError, match="cannot be brought to the disk"):
        await recorder.__aexit__(None, None, None)
    die(store)


@each_kind
async def test_whoever_is_cancelled_while_it_waits_has_recorded_all_the_same(tmp_path, name):
    with opened(tmp_path / name) as store:
        async with Recorder(store, "power") as recorder:
            waiting = [asyncio.create_task(recorder.rewarded(made.entry, made.row)) for made in MADE[:20]]
            await asyncio.sleep(0)
            for task in waiting[::2]:
                task.cancel()
            await asyncio.wait(waiting)
            assert [task.cancelled() for task in waiting] == [True, False] * 10
        assert rows_at(store) == [made.row for made in MADE[:20]]


@each_durability
async def test_a_run_that_is_cancelled_leaves_everything_recorded(tmp_path, durability):
    store = begun(tmp_path / "a.jsonl")

    async def run() -> None:
        async with Recorder(store, durability) as recorder:
            await record(recorder, *MADE[:20])
            await asyncio.sleep(3600)

    running = asyncio.create_task(run())
    while store.journal.size < sum(len(made.row) + 1 for made in MADE[:20]):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert len(indexed(store)) == 20
    store.close()
    with opened(store.path) as store:
        assert rows_at(store) == [made.row for made in MADE[:20]]


async def test_a_profile_hears_how_long_groups_took(tmp_path):
    spans = Spans()
    with opened(tmp_path / "a.jsonl") as store:
        async with Recorder(store, "power", spans) as recorder:
            await record(recorder, *MADE[:20])
    commit, fsync = spans.stages["store"]["commit"], spans.stages["store"]["fsync"]
    assert 1 <= commit.count == fsync.count <= 20


async def test_nothing_can_be_recorded_after_the_end(tmp_path):
    with opened(tmp_path / "a.jsonl") as store:
        async with Recorder(store) as recorder:
            pass
        with pytest.raises(rm.StoreError, match="recording has ended"):
            await recorder.rewarded(MADE[0].entry, MADE[0].row)
    assert not store.path.exists()
