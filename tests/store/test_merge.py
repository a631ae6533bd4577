"""Outputs made one: what stands for a slot, what is a group, and what a crash leaves."""

import json
import random
import shutil
from pathlib import Path

import pytest
from msgspec import Raw

import rollmill as rm
from rollmill.errors import ConfigError, StoreError
from rollmill.files import write_whole
from rollmill.store import merge as module
from rollmill.store.failures import read_failures
from rollmill.store.folder import run_folder
from rollmill.store.ledger import Ledger, Wanted
from rollmill.store.lines import Line, read_lines
from rollmill.store.manifest import NAME as MANIFEST
from rollmill.store.manifest import Identity, Manifest, Run, Segment, read_manifest
from rollmill.store.merge import merge
from rollmill.store.schema import entry_of, read_row, write_row
from rollmill.store.store import Store
from rollmill.types import encode


class Question(rm.Task):
    name: str = "unnamed"


class Judge(rm.Environment[Question]):
    """Rewards an answer with the number that it is; `skip` is left for later, and no number is a fault."""

    def verify(self, task, response):
        if response.output_text == "skip":
            return rm.Reward(0.0, notes={"verification_skipped": True})
        return float(response.output_text)


def slot(prompt: str, index: int, *, occurrence: int = 0, repeat: int = 0, rollout: int | None = None) -> rm.Slot:
    """A slot of the task with that prompt, as an output that gave it this index has it."""
    number = repeat if rollout is None else rollout
    return rm.Slot("agent", Question.of(prompt).identity, occurrence, repeat, index, number)


async def write(path: Path, *played: tuple[str, rm.Slot, str], run: str = "") -> Path:
    """An output with these rollouts: the prompt, the slot, and what the model said."""
    run = run or path.name
    with Store(path) as store:
        store.open()
        kept = []
        for prompt, where, said in played:
            rollout = await rm.play(Question.of(prompt), Judge, rm.ToolAgent(), rm.Scripted(said), slot=where)
            if rollout.failure is None:
                kept.append((entry_of(rollout, run), store.journal.append(write_row(rollout, run))))
            else:
                entry = entry_of(rollout, run)
                kept.append((entry, store.failures.append(entry, Raw(b"{}"), final=True)))
        store.journal.commit()
        store.keep(kept)
    return path


def rows(path: Path) -> list[dict]:
    return [json.loads(line.content) for line in read_lines(path) if isinstance(line, Line)]


def asked(row: dict) -> str:
    return row["responses_create_params"]["input"][0]["content"]


def numbered(path: Path) -> list[tuple[str, int, int]]:
    return [(asked(row), row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(path)]


def identity(model: str = "scripted", **fields) -> Identity:
    return Identity(**{"model": model, "sampling": {}, "environment": "judge", "version": "1", **fields})


def note_identity(path: Path, one: Identity, *, run: str = "") -> None:
    """What a collection writes beside its output."""
    words = dict.fromkeys(("started", "rollmill", "python", "host", "durability"), "")
    made = Run(id=run or path.name, segment=1, command=[], pid=1, **words)
    write_whole(run_folder(path) / MANIFEST, encode(Manifest([Segment({"agent": one})], [made], {})))


async def test_chunks_that_each_count_from_zero_become_one_output(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"), ("q", slot("q", 1), "2"))
    b = await write(tmp_path / "b.jsonl", ("r", slot("r", 0), "3"), ("s", slot("s", 1), "4"))
    merged = merge(tmp_path / "all.jsonl", [a, b])
    assert (merged.rollouts, merged.groups, merged.failed) == (4, 4, 0)
    assert numbered(tmp_path / "all.jsonl") == [("p", 0, 0), ("q", 1, 0), ("r", 2, 0), ("s", 3, 0)]


async def test_a_task_of_several_inputs_is_one_group(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"), ("q", slot("q", 1), "2"))
    b = await write(
        tmp_path / "b.jsonl",
        ("q", slot("q", 0, repeat=1), "3"),
        ("p", slot("p", 1, repeat=1), "4"),
        ("r", slot("r", 2), "5"),
    )
    merge(tmp_path / "all.jsonl", [a, b])
    assert numbered(tmp_path / "all.jsonl") == [("p", 0, 0), ("q", 1, 0), ("q", 1, 1), ("p", 0, 1), ("r", 2, 0)]


async def test_the_first_rollout_of_a_slot_stands_and_the_others_are_counted(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    b = await write(tmp_path / "b.jsonl", ("p", slot("p", 7), "2"), ("q", slot("q", 8), "3"))
    merged = merge(tmp_path / "all.jsonl", [a, b])
    assert [(row["reward"], row["_ng_task_index"]) for row in rows(tmp_path / "all.jsonl")] == [(1, 0), (3, 1)]
    assert [(one.kept, one.doubled) for one in merged.inputs] == [(1, 0), (1, 1)]


async def test_a_reward_takes_the_place_of_a_placeholder(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "skip"), ("q", slot("q", 1), "skip"))
    b = await write(tmp_path / "b.jsonl", ("p", slot("p", 0), "2"))
    merged = merge(tmp_path / "all.jsonl", [a, b])
    assert [(asked(row), row["reward"]) for row in rows(tmp_path / "all.jsonl")] == [("q", 0), ("p", 2)]
    assert [(one.kept, one.doubled) for one in merged.inputs] == [(1, 1), (1, 0)]


async def test_occurrences_of_several_inputs_can_be_kept(tmp_path):
    twice = [("p", slot("p", 0, occurrence=n, rollout=n), str(n)) for n in (0, 1)]
    a = await write(tmp_path / "a.jsonl", *twice)
    b = await write(tmp_path / "b.jsonl", *twice)
    # A copy is no further occurrence: a run plays a slot once.
    copy = shutil.copy(a, tmp_path / "copy.jsonl")
    merged = merge(tmp_path / "all.jsonl", [a, copy, b], occurrences=True)
    assert [one.kept for one in merged.inputs] == [2, 0, 2]
    found = rows(tmp_path / "all.jsonl")
    assert [row["rollmill"]["slot"]["occurrence"] for row in found] == [0, 1, 2, 3]
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in found] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [row["rollmill"]["merged"][0]["occurrence"] for row in found] == [0, 1, 0, 1]
    assert merge(tmp_path / "again.jsonl", [a, copy, b]).rollouts == 2


async def test_a_failure_is_of_an_occurrence_of_its_own_input(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "no"))
    b = await write(tmp_path / "b.jsonl", ("p", slot("p", 0), "1"))
    merged = merge(tmp_path / "all.jsonl", [a, b], occurrences=True)
    assert (merged.rollouts, merged.failed) == (1, 1)
    (logged,) = [one for _, one in read_failures(tmp_path / "all.run")]
    (row,) = rows(tmp_path / "all.jsonl")
    assert (logged.slot.occurrence, row["rollmill"]["slot"]["occurrence"]) == (0, 1)
    assert (logged.slot.task_index, logged.slot.rollout_index) == (0, 0)
    assert (row["_ng_task_index"], row["_ng_rollout_index"]) == (0, 1)


async def test_rows_say_where_they_come_from_and_keep_everything_else(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 3, repeat=2), "1"), run="first")
    merge(tmp_path / "b.jsonl", [a])
    merge(tmp_path / "c.jsonl", [tmp_path / "b.jsonl"])
    (before,), (after,) = rows(a), rows(tmp_path / "c.jsonl")
    assert after["rollmill"].pop("merged") == [
        {"file": str(a), "task_index": 3, "rollout_index": 2, "occurrence": 0},
        {"file": str(tmp_path / "b.jsonl"), "task_index": 0, "rollout_index": 0, "occurrence": 0},
    ]
    assert after["rollmill"]["run"] == "first"
    assert after == before | {"_ng_task_index": 0, "_ng_rollout_index": 0}
    assert list(after) == list(before)
    line = (tmp_path / "c.jsonl").read_bytes()
    rollout = read_row(line, Question)
    assert (rollout.reward.value, rollout.slot.task, rollout.task.name) == (1, slot("p", 0).task, "unnamed")


async def test_tasks_whose_rows_brought_one_index_stay_a_group(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("x", slot("x", 0), "1"))
    b = await write(tmp_path / "b.jsonl", ("p", slot("p", 0, rollout=0), "1"), ("q", slot("q", 0, rollout=1), "2"))
    merge(tmp_path / "all.jsonl", [a, b])
    assert numbered(tmp_path / "all.jsonl") == [("x", 0, 0), ("p", 1, 0), ("q", 1, 1)]


async def test_tasks_that_share_an_index_because_of_cat_are_no_group(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"), ("q", slot("q", 1), "2"))
    b = await write(tmp_path / "b.jsonl", ("r", slot("r", 0), "3"), ("s", slot("s", 1, rollout=5), "4"))
    together = tmp_path / "together.jsonl"
    together.write_bytes(a.read_bytes() + b.read_bytes())
    merge(tmp_path / "all.jsonl", [together])
    assert numbered(tmp_path / "all.jsonl") == [("p", 0, 0), ("q", 1, 0), ("r", 2, 0), ("s", 3, 0)]


async def test_failures_that_no_input_rewarded_are_carried_over(tmp_path):
    a = await write(
        tmp_path / "a.jsonl", ("p", slot("p", 0), "no"), ("q", slot("q", 1), "no"), ("r", slot("r", 2), "1")
    )
    b = await write(tmp_path / "b.jsonl", ("q", slot("q", 0), "2"))
    merged = merge(tmp_path / "all.jsonl", [a, b])
    assert (merged.rollouts, merged.failed, [one.failed for one in merged.inputs]) == (2, 1, [1, 0])
    (logged,) = [one for _, one in read_failures(tmp_path / "all.run")]
    (was,) = [one for _, one in read_failures(tmp_path / "a.run") if one.slot.task == logged.slot.task]
    assert (logged.failure, logged.at, logged.run, logged.final) == (was.failure, was.at, "a.jsonl", True)
    places = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(tmp_path / "all.jsonl")}
    assert (logged.slot.task_index, logged.slot.rollout_index) not in places


async def test_an_output_of_failures_alone_can_be_merged(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "no"))
    assert not a.exists()
    assert merge(tmp_path / "all.jsonl", [a]).failed == 1
    assert rows(tmp_path / "all.jsonl") == []


async def test_a_merged_output_is_an_output(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"), ("q", slot("q", 1), "no"))
    b = await write(tmp_path / "b.jsonl", ("r", slot("r", 0), "3"))
    merge(tmp_path / "all.jsonl", [a, b])
    with Store(tmp_path / "all.jsonl") as store:
        store.open()
        assert (store.totals.rollouts, store.totals.failed, store.found.doubled) == (2, 1, 0)
        wanted = [Wanted("agent", bytes.fromhex(slot(prompt, 0).task)) for prompt in "pqrs"]
        owed, _ = Ledger(store.index).plan(wanted, lambda _: 2)
    # What ended has ended; its groups get their second repeats; the task of no input gets an index of its own.
    assert [[(one.task_index, one.repeat) for one in of_task.slots] for of_task in owed] == [
        [(0, 1)],
        [(1, 1)],
        [(2, 1)],
        [(3, 0), (3, 1)],
    ]


async def test_the_index_comes_with_it(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    merge(tmp_path / "all.jsonl.zst", [a])
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "a.run", "all.jsonl.zst", "all.run"}
    assert {"index.sqlite", "merged.json"} <= {path.name for path in (tmp_path / "all.run").iterdir()}
    merge(tmp_path / "plain.jsonl", [tmp_path / "all.jsonl.zst"])
    assert numbered(tmp_path / "plain.jsonl") == [("p", 0, 0)]


@pytest.mark.parametrize("seed", range(5))
async def test_any_split_of_a_collection_merges_to_the_same_slots(tmp_path, seed):
    order = random.Random(seed)
    whole = [(f"t{n}", slot(f"t{n}", n, repeat=repeat), str(n)) for n in range(8) for repeat in range(3)]
    parts = []
    for number in range(4):
        part = order.sample(whole, order.randint(4, 16))
        # Each part counts its tasks in its own way.
        indices = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompt for prompt, _, _ in part))}
        played = [(prompt, slot(prompt, indices[prompt], repeat=where.repeat), said) for prompt, where, said in part]
        parts.append((await write(tmp_path / f"{number}.jsonl", *played), part))
    merge(tmp_path / "all.jsonl", [path for path, _ in parts])
    found = rows(tmp_path / "all.jsonl")
    keys = [(asked(row), row["rollmill"]["slot"]["repeat"]) for row in found]
    assert sorted(keys) == sorted({(prompt, where.repeat) for _, part in parts for prompt, where, _ in part})
    assert len({(asked(row), row["_ng_task_index"]) for row in found}) == len({asked(row) for row in found})
    assert len({row["_ng_task_index"] for row in found}) == len({asked(row) for row in found})
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in found}) == len(found)


async def test_lines_that_are_no_rollouts_are_left_out_with_their_places(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    with a.open("ab") as file:
        file.write(b'{"reward": 1}\n\nno JSON\n' + a.read_bytes()[:50])
    merged = merge(tmp_path / "all.jsonl", [a])
    (one,) = merged.inputs
    assert (one.kept, one.foreign, one.garbage, one.torn) == (1, 1, 1, 1)
    assert one.places == ["line 2: foreign", "line 4: garbage", "line 5: torn"]
    assert len(rows(tmp_path / "all.jsonl")) == 1
    said = json.loads((tmp_path / "all.run/merged.json").read_bytes())
    assert said["inputs"][0]["places"] == one.places


async def test_a_torn_frame_is_left_out(tmp_path):
    a = await write(tmp_path / "a.jsonl.zst", ("p", slot("p", 0), "1"))
    size = a.stat().st_size
    with a.open("ab") as file:
        file.write(a.read_bytes()[:-5])
    (one,) = merge(tmp_path / "all.jsonl", [a]).inputs
    assert (one.kept, one.torn, one.places) == (1, 1, [f"byte {size}: torn"])


async def test_different_experiments_are_refused_by_their_fields(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    b = await write(tmp_path / "b.jsonl", ("q", slot("q", 0), "2"))
    note_identity(a, identity())
    note_identity(b, identity(sampling={"temperature": 0.5}, version="2"))
    with pytest.raises(
        ConfigError, match=r"b\.jsonl.*sampling was \{\}, is \{'temperature': 0.5\}; version was.*--mixed"
    ):
        merge(tmp_path / "all.jsonl", [a, b])
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "a.run", "b.jsonl", "b.run"}
    merge(tmp_path / "all.jsonl", [a, b], mixed=True)
    manifest = read_manifest(tmp_path / "all.run")
    assert [segment.agents["agent"].version for segment in manifest.segments] == ["1", "2"]
    assert {run.id: run.segment for run in manifest.runs} == {"a.jsonl": 1, "b.jsonl": 2}


async def test_one_experiment_has_one_segment_with_all_runs(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    b = await write(tmp_path / "b.jsonl", ("q", slot("q", 0), "2"))
    for path in (a, b):
        note_identity(path, identity())
    merge(tmp_path / "all.jsonl", [a, b])
    manifest = read_manifest(tmp_path / "all.run")
    assert [segment.agents for segment in manifest.segments] == [{"agent": identity()}]
    assert {run.id for run in manifest.runs} == {row["rollmill"]["run"] for row in rows(tmp_path / "all.jsonl")}


async def test_rows_without_a_manifest_are_compared_by_their_model(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    b = await write(tmp_path / "b.jsonl", ("q", slot("q", 0), "2"))
    note_identity(a, identity(model="another"))
    with pytest.raises(ConfigError, match=r"b\.jsonl.*model was 'another', is 'scripted'.*--mixed"):
        merge(tmp_path / "all.jsonl", [a, b])
    assert merge(tmp_path / "all.jsonl", [a, b], mixed=True).rollouts == 2


async def test_nothing_is_written_over(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    content = a.read_bytes()
    with pytest.raises(ConfigError, match="is one of the inputs"):
        merge(a, [a])
    with pytest.raises(ConfigError, match="shares its folder"):
        merge(tmp_path / "a.jsonl.zst", [a])
    (tmp_path / "b.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match=r"b\.jsonl exists"):
        merge(tmp_path / "b.jsonl", [a])
    (tmp_path / "c.run").mkdir()
    with pytest.raises(ConfigError, match=r"c\.run exists"):
        merge(tmp_path / "c.jsonl", [a])
    assert a.read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "a.run", "b.jsonl", "c.run"}


async def test_an_input_counts_once(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    (tmp_path / "also.jsonl").symlink_to(a)
    with pytest.raises(ConfigError, match=r"also\.jsonl is given twice"):
        merge(tmp_path / "all.jsonl", [a, tmp_path / "also.jsonl"])


async def test_a_missing_input_and_one_without_rollouts_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.jsonl: there is no such output"):
        merge(tmp_path / "all.jsonl", [tmp_path / "a.jsonl"])
    (tmp_path / "a.jsonl").write_text('{"foreign": true}\n')
    with pytest.raises(ConfigError, match="there is no rollout"):
        merge(tmp_path / "all.jsonl", [tmp_path / "a.jsonl"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("handed_over", [False, True], ids=["while it wrote", "between the renames"])
async def test_what_a_crash_left_is_taken_over(tmp_path, handed_over):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    merge(tmp_path / "all.jsonl", [a])
    left = tmp_path / ".all.merging"
    left.mkdir()
    (tmp_path / "all.jsonl").rename(left / "all.jsonl")
    if not handed_over:
        (tmp_path / "all.run").rename(left / "all.run")
    (left / "scratch.sqlite").write_bytes(b"half a database")
    merge(tmp_path / "all.jsonl", [a])
    assert numbered(tmp_path / "all.jsonl") == [("p", 0, 0)]
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "a.run", "all.jsonl", "all.run"}


async def test_two_merges_to_one_output_do_not_mix(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    with module.Workplace(tmp_path / "all.jsonl"), pytest.raises(ConfigError, match=r"all\.jsonl is being written"):
        merge(tmp_path / "all.jsonl", [a])
    merge(tmp_path / "all.jsonl", [a])


async def test_an_output_that_grows_meanwhile_is_merged_as_it_was(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"))
    reading = module._Input(a)
    assert [number for number, _ in reading.offers()] == [0]
    await write(a, ("q", slot("q", 1), "2"), ("r", slot("r", 2), "no"))
    assert [number for number, _ in reading.again()] == [0]


async def test_an_output_that_is_changed_meanwhile_is_not_merged_wrongly(tmp_path):
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"), ("q", slot("q", 1), "2"))
    reading = module._Input(a)
    with module.Workplace(tmp_path / "all.jsonl") as workplace:
        choice = module.Choice(workplace.scratch, occurrences=False)
        module._choose([reading], choice)
        a.write_bytes(b"".join(reversed(a.read_bytes().splitlines(keepends=True))))
        with pytest.raises(StoreError, match="was changed while it was read"):
            module._write(workplace.rows, [reading], choice.chosen(), None)
        choice.close()
    assert not (tmp_path / "all.jsonl").exists()


async def test_cat_of_outputs_is_an_output(tmp_path):
    """Chunks count their tasks from 0 each, and one slot is in both."""
    a = await write(tmp_path / "a.jsonl", ("p", slot("p", 0), "1"), ("q", slot("q", 1), "2"))
    b = await write(tmp_path / "b.jsonl", ("r", slot("r", 0), "3"), ("q", slot("q", 9), "4"), ("s", slot("s", 2), "5"))
    together = tmp_path / "c.jsonl"
    together.write_bytes(a.read_bytes() + b.read_bytes())
    with Store(together) as store:
        store.open()
        assert (store.totals.rollouts, store.found.doubled) == (4, 1)
        wanted = [Wanted("agent", bytes.fromhex(slot(prompt, 0).task)) for prompt in "pqrst"]
        ledger = Ledger(store.index)
        owed, _ = ledger.plan(wanted, lambda _: 1)
        assert [one.held for one in owed] == [1, 1, 1, 1, 0]
        more, _ = Ledger(store.index).plan(wanted[:3], lambda _: 2)
    # New rollouts go to the groups that the rows which stayed are in.
    assert [[one.task_index for one in of_task.slots] for of_task in more] == [[0], [1], [0]]
    # Two tasks share an index, so their second rollouts must not share a number.
    taken = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(together)}
    new = [(one.task_index, one.rollout_index) for of_task in more for one in of_task.slots]
    assert len(set(new)) == len(new) == 3
    assert not taken & set(new)
    assert sorted((asked(row), row["reward"]) for row in rows(together)) == [("p", 1), ("q", 2), ("r", 3), ("s", 5)]
