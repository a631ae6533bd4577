"""A collection from its source to its report, on a real store; the model answers from a script."""

import asyncio
import json
import os
from contextlib import asynccontextmanager

import msgspec
import pytest
import zstandard
from tests.collection.parts import Rows, numbered, tasks, until

import rollmill as rm
from rollmill.collection.limits import Places
from rollmill.collection.options import CollectOptions
from rollmill.collection.run import About, run
from rollmill.collection.snapshot import read_snapshot
from rollmill.collection.source import Player, RowFile, Survey
from rollmill.local import LocalWorker, Seat
from rollmill.rollout import Deferred, in_thread
from rollmill.store.manifest import Identity, new_run, read_manifest


class Echo(rm.Environment[rm.Task]):
    def verify(self, task, response):
        return float(response.output_text == "yes")


class Broken(Echo):
    def verify(self, task, response):
        raise RuntimeError("no")


class Slow(Echo):
    release = None

    async def setup(self):
        await self.release.wait()


class Bench:
    """An output, and everything that a run on it needs."""

    def __init__(self, folder) -> None:
        self.path = folder / "a.jsonl"
        self.folder = folder / "a.run"
        self.said: list[str] = []
        self.entered = 0
        self.worlds = {}
        self.code = {}
        self.model = rm.Scripted("yes")
        self.identities = {}
        self.judge = None

    @asynccontextmanager
    async def crew(self, run_id: str, places: int):
        self.entered += 1

        async def seat(agent):
            return Seat(self.worlds.get(agent, Echo), rm.ToolAgent(), self.model)

        more = {"judge": self.judge} if self.judge else {}
        yield LocalWorker(seat, in_thread, run=run_id, admission=Places(places), **more)

    def identify(self, agent):
        return self.identities.get(agent, Identity("m", {}, "Echo", "1"))

    async def run(self, source, *, places=4, on_start=lambda *_: None, **options):
        source = Rows(source) if isinstance(source, list) else source
        about = About(
            run=new_run(version="0", command=["rollmill"], durability="os", code=self.code, inputs=[]),
            config={},
            identify=self.identify,
        )
        return await run(
            source,
            source.survey(skip_bad=options.get("skip_bad_rows", False)),
            self.crew(about.run.id, places),
            CollectOptions(output_jsonl_fpath=str(self.path), **options),
            about,
            say=self.said.append,
            on_start=on_start,
        )

    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def metrics(self) -> dict:
        return json.loads((self.folder / "metrics.json").read_text())


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


async def test_what_is_asked_for_is_played_and_said(bench):
    outcome = await bench.run(numbered(30), num_repeats=2)
    assert (outcome.planned, outcome.held, outcome.ended, outcome.failed) == (60, 0, 60, 0)
    assert outcome.complete
    assert outcome.stopped == ""
    rows = bench.rows()
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == len(rows) == 60
    assert bench.metrics()["reward"]["mean"] == 1.0
    assert bench.metrics()["completion"] == 1.0
    snapshot = read_snapshot(bench.folder)
    assert (snapshot.state, snapshot.planned, snapshot.ended, snapshot.pid) == ("finished", 60, 60, os.getpid())
    assert [run.segment for run in read_manifest(bench.folder).runs] == [1]
    assert {row["rollmill"]["run"] for row in rows} == {read_manifest(bench.folder).runs[0].id}


async def test_the_run_again_has_nothing_to_do_and_enters_no_crew(bench):
    await bench.run(numbered(10))
    before = bench.path.read_bytes()
    outcome = await bench.run(numbered(10))
    assert (outcome.held, outcome.ended, outcome.complete) == (10, 0, True)
    assert bench.entered == 1
    assert bench.path.read_bytes() == before
    assert outcome.report.totals.rewarded == 10
    assert len(read_manifest(bench.folder).runs) == 1


@pytest.mark.parametrize("left", [None, b"", b'{"rollouts": 3, "failed": 0}'])
async def test_metrics_that_a_run_could_not_write_are_mended_by_the_next(bench, left):
    await bench.run(numbered(10))
    written = bench.metrics()
    path = bench.folder / "metrics.json"
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    await bench.run(numbered(10))
    assert bench.metrics() == written | {"retries": bench.metrics()["retries"]}


async def test_metrics_that_are_true_stay_as_they_are(bench):
    await bench.run(numbered(10))
    path = bench.folder / "metrics.json"
    before = path.stat().st_mtime_ns
    await bench.run(numbered(10))
    assert path.stat().st_mtime_ns == before


async def test_more_tasks_and_repeats_play_the_difference(bench):
    await bench.run(numbered(10))
    assert (await bench.run(numbered(15)[::-1], num_repeats=2)).ended == 20
    assert (await bench.run(numbered(5), num_repeats=2)).ended == 0
    rows = bench.rows()
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == len(rows) == 30


async def test_what_failed_for_good_is_done_until_it_is_asked_for_again(bench):
    bench.worlds["two"] = Broken
    source = [*tasks("a", "b", agent="one"), *tasks("a", agent="two")]
    outcome = await bench.run(source)
    assert (outcome.planned, outcome.ended, outcome.failed, outcome.complete) == (3, 3, 1, True)
    assert bench.metrics()["failures"] == {"verifier: error": 1}
    outcome = await bench.run(source)
    assert (outcome.held, outcome.held_failed, outcome.ended) == (3, 1, 0)
    bench.worlds.clear()
    outcome = await bench.run(source, retry_failed=True)
    assert (outcome.held, outcome.ended, outcome.failed) == (2, 1, 0)
    assert len(bench.rows()) == 3
    assert bench.metrics()["failed"] == 0
    assert (await bench.run(source)).held_failed == 0


async def test_every_slot_is_accounted_for(bench):
    bench.worlds["two"] = Broken
    source = [*numbered(40, "one"), *numbered(10, "two")]
    outcome = await bench.run(source, max_failures=3)
    assert outcome.stopped == "4 slots failed, and max_failures is 3"
    assert not outcome.complete
    totals = outcome.report.totals
    assert totals.rewarded + totals.failed == outcome.ended
    assert outcome.planned == 50
    outcome = await bench.run(source)
    assert outcome.held + outcome.ended == outcome.planned == 50
    assert outcome.failed + outcome.held_failed == outcome.report.totals.failed == 10


async def test_another_experiment_is_refused_before_anything_is_played(bench):
    await bench.run(numbered(3))
    before = {path: path.read_bytes() for path in bench.folder.iterdir() if path.suffix == ".json"}
    bench.identities["agent"] = Identity("m", {"temperature": 1}, "Echo", "1")
    with pytest.raises(rm.ConfigError, match=r"sampling was \{\}, is \{'temperature': 1\}.*\+new_segment=true"):
        await bench.run(numbered(5))
    assert bench.entered == 1
    assert {path: path.read_bytes() for path in bench.folder.iterdir() if path.suffix == ".json"} == before


async def test_a_new_segment_goes_on_with_what_is_missing(bench):
    await bench.run(numbered(3))
    bench.identities["agent"] = Identity("m", {"temperature": 1}, "Echo", "1")
    outcome = await bench.run(numbered(5), new_segment=True)
    assert (outcome.held, outcome.ended) == (3, 2)
    manifest = read_manifest(bench.folder)
    segments = {run.id: run.segment for run in manifest.runs}
    assert sorted(segments[row["rollmill"]["run"]] for row in bench.rows()) == [1, 1, 1, 2, 2]
    assert manifest.segments[1].agents["agent"].sampling == {"temperature": 1}


async def test_rows_of_another_model_are_refused_also_without_the_runs_folder(bench):
    await bench.run(numbered(3))
    (bench.folder / "manifest.json").unlink()
    bench.identities["agent"] = Identity("other", {}, "Echo", "1")
    with pytest.raises(rm.ConfigError, match="holds rollouts of agent with the model 'scripted', not 'other'"):
        await bench.run(numbered(5))


async def test_an_agent_that_appears_late_is_met_then(bench, tmp_path):
    path = tmp_path / "tasks.jsonl"
    row = {"responses_create_params": {"input": "?"}, "pad": "x" * 6000}
    late = {**row, "agent_ref": {"name": "late"}}
    path.write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(2900)) + json.dumps(late) + "\n")
    assert path.stat().st_size > 2**24
    source = RowFile(path, lambda ref: Player(ref.name if ref else "first", rm.Task))
    assert source.survey() == Survey({"first": 1000}, None)
    outcome = await bench.run(source, places=64)
    assert (outcome.planned, outcome.ended, outcome.complete) == (2901, 2901, True)
    assert set(read_manifest(bench.folder).segments[0].agents) == {"first", "late"}


async def test_a_late_agent_of_another_experiment_stops_the_run_and_what_ran_is_kept(bench):
    await bench.run(numbered(3, "late"))
    bench.identities["late"] = Identity("m", {}, "Echo", "2")

    class Unseen(Rows):
        def survey(self, *, skip_bad=False):
            return Survey({"first": 0}, None)

    with pytest.raises(rm.ConfigError, match="of another experiment of late: version was '1', is '2'"):
        await bench.run(Unseen([*numbered(700, "first"), *numbered(5, "late")]))
    assert len(bench.rows()) > 3


async def test_bad_rows_are_skipped_where_that_is_wanted_and_counted(bench, tmp_path):
    path = tmp_path / "tasks.jsonl"
    good = json.dumps({"responses_create_params": {"input": "?"}}) + "\n"
    path.write_text(good + "{oops\n" * 15 + good)
    source = RowFile(path, lambda ref: Player("agent", rm.Task))
    outcome = await bench.run(source, skip_bad_rows=True)
    assert (outcome.ended, outcome.planned, outcome.skipped_rows) == (2, 2, 15)
    assert len(bench.said) == 10
    assert bench.said[0].startswith(f"Skipped: {path}, line 2: not JSON")
    with pytest.raises(rm.ConfigError, match="line 2: not JSON"):
        await bench.run(source)


async def test_a_stream_without_a_task_is_said(bench):
    with pytest.raises(rm.ConfigError, match="rows: there is no task in it"):
        await bench.run([])
    assert not bench.path.exists()


async def test_deferred_rollouts_carry_a_placeholder_that_nothing_counts(bench):
    bench.judge = Deferred(0.0)
    outcome = await bench.run(numbered(4), verify="defer")
    assert outcome.complete
    assert [(row["reward"], row["verification_skipped"]) for row in bench.rows()] == [(0.0, True)] * 4
    metrics = bench.metrics()
    assert (metrics["unverified"], metrics["rewarded"], metrics["reward"]["mean"]) == (4, 0, None)
    assert "reward" not in metrics["mean"]
    assert (await bench.run(numbered(4), verify="defer")).held == 4


async def test_a_warning_that_is_to_stop_the_run_stops_it(bench):
    release = asyncio.Event()

    class Waits(Slow):
        pass

    Waits.release = release
    bench.worlds["slow"] = Waits
    collectors = []

    async def let_go():
        await until(lambda: collectors and collectors[0].ended >= 120)
        await until(lambda: collectors[0].draining)
        release.set()

    letting = asyncio.create_task(let_go())
    outcome = await bench.run(
        [*numbered(120, "quick"), *numbered(500, "slow")],
        places=300,
        stop_if=["equal_rewards"],
        on_start=lambda collector, progress: collectors.append(collector),
    )
    await letting
    assert outcome.stopped.startswith("stop_if=equal_rewards: all ")
    assert not outcome.complete
    assert "all" in read_snapshot(bench.folder).warnings[0]


async def test_a_warning_alone_stops_nothing_also_when_it_comes_at_the_end(bench, capsys):
    outcome = await bench.run(numbered(150))
    assert outcome.complete
    assert read_snapshot(bench.folder).warnings == ["all 150 rewards are 1: look at the verification"]
    assert "Warning: all 150 rewards are 1" in capsys.readouterr().err


async def test_draining_says_what_is_owed(bench):
    Slow.release = asyncio.Event()
    bench.worlds["agent"] = Slow
    collectors = []

    async def drain():
        await until(lambda: collectors and collectors[0].running == 4)
        collectors[0].drain()
        Slow.release.set()

    draining = asyncio.create_task(drain())
    outcome = await bench.run(numbered(100), on_start=lambda collector, progress: collectors.append(collector))
    await draining
    assert (outcome.ended, outcome.planned, outcome.stopped, outcome.complete) == (4, 100, "stopped", False)
    assert read_snapshot(bench.folder).state == "stopped"
    assert (await bench.run(numbered(100))).held == 4


async def test_a_run_that_is_cancelled_leaves_everything_that_had_ended(bench):
    Slow.release = asyncio.Event()
    bench.worlds["slow"] = Slow
    collectors = []
    running = asyncio.create_task(
        bench.run(
            [*numbered(10, "quick"), *numbered(10, "slow")],
            on_start=lambda collector, progress: collectors.append(collector),
        )
    )
    await until(lambda: collectors and collectors[0].ended >= 3)
    ended = collectors[0].ended
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(bench.rows()) >= ended
    assert read_snapshot(bench.folder).state == "stopped"
    Slow.release.set()
    assert (await bench.run([*numbered(10, "quick"), *numbered(10, "slow")])).complete
    assert len(bench.rows()) == 20


async def test_an_output_may_be_compressed(bench, tmp_path):
    bench.path = tmp_path / "a.jsonl.zst"
    await bench.run(numbered(5))
    outcome = await bench.run(numbered(9))
    assert (outcome.held, outcome.ended) == (5, 4)
    with (
        bench.path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as rows,
    ):
        assert len(rows.read().splitlines()) == 9


async def test_source_that_has_changed_without_its_version_is_said(bench):
    bench.code = {"agent": "aa"}
    await bench.run(numbered(1))
    await bench.run(numbered(2))
    assert bench.said == []
    bench.code = {"agent": "bb"}
    await bench.run(numbered(3))
    assert "The source of agent's environment has changed" in bench.said[0]
    assert "raise its `version`" in bench.said[0]


async def test_what_a_crash_left_is_said_and_mended(bench):
    await bench.run(numbered(5))
    content = bench.path.read_bytes()
    bench.path.write_bytes(content[:-40])
    outcome = await bench.run(numbered(5))
    assert (outcome.held, outcome.ended) == (4, 1)
    assert any("torn by a crash" in line for line in bench.said)
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in bench.rows()}) == 5


async def test_every_option_can_be_written_down_and_read_again():
    options = CollectOptions(output_jsonl_fpath="a.jsonl", num_repeats={"one": 2, "_default": 3})
    assert msgspec.convert(msgspec.to_builtins(options), CollectOptions) == options
    assert [options.repeats(agent) for agent in ("one", "two")] == [2, 3]
    assert CollectOptions(output_jsonl_fpath="a").repeats("one") == 1
