"""The recipes of seed 004, on scale, but for that of test_continuous.py, with small numbers."""

import re
import statistics
import time
from collections import Counter

import pytest
from tests.seeds.documents import block, needs_documents, quoted
from tests.seeds.place import Place, installed, needs, row, served_at
from tests.seeds.terminal import Terminal

pytestmark = [pytest.mark.slow, needs_documents]


def test_incremental_collection_with_resume(place):
    # The first is still running when the command is killed.
    place.write("large_dataset.jsonl", row(0) | {"gate": "open"}, *map(row, range(1, 60)))
    first = (
        block("004", "bash", "... process crashes")
        .replace("10000", "40")
        .replace("+limit=40", "+limit=40 +num_samples_in_parallel=4")
    )
    place.killed(first, "rollouts.jsonl", rows=12)
    said = place.said(block("004", "bash", "completed=$(wc -l < rollouts.jsonl)"))
    completed = int(said.split()[1])
    assert completed == place.lines("rollouts.jsonl") >= 12
    early = set(place.numbers("rollouts.jsonl"))
    assert early != set(range(completed)), "they ended in order, so nothing is tested"

    second = block("004", "bash", "tail -n +5248")
    for long, short in (("5248", completed + 1), ("5247", completed), ("10000", 40)):
        second = second.replace(long, str(short))
    said = place.said(second)
    # Every row of the second input is there, none twice; of the first, those that had ended.
    assert place.numbers("rollouts.jsonl") == sorted(early | set(range(completed, 40)))

    # What a count of lines could not know of is named, with the one command that plays it.
    owed = sorted(set(range(completed)) - early)
    told = re.search(r"Owed of an earlier input: (\d+) slots?, of tasks? ([\d, and]+); this plays them:\n  (.*)", said)
    assert int(told[1]) == len(owed)
    assert [int(number) for number in re.findall(r"\d+", told[2])] == owed
    command = told[3]
    (place.folder / "open").touch()
    assert command.split()[0] == "ng_collect_rollouts"
    done = place.said(command)
    assert place.numbers("rollouts.jsonl") == list(range(40))
    assert "Nothing to do" not in done
    assert "Nothing to do" in place.said(first)


def chunked(place: Place, *, rows: int, chunk: int) -> Place:
    """The folder of the recipe with its chunks."""
    (place.folder / "datasets").mkdir()
    place.write("datasets/million_tasks.jsonl", *map(row, range(rows)))
    split = block("004", "bash", "split -l 10000 -d").replace("10000", str(chunk))
    place.said(block("004", "bash", "mkdir -p outputs/million_scale") + split)
    return place.inside("outputs/million_scale")


@needs("jq")
def test_million_scale_generation(place):
    inside = chunked(place, rows=45, chunk=8)
    assert len(list(inside.folder.glob("chunk_*.jsonl"))) == 6
    parallel = block("004", "bash", "MAX_PARALLEL=4").replace("sleep 10", "sleep 0.2")
    monitor = block("004", "bash", "watch -n 30")
    watch, listed = monitor.split("\n\n")
    watched = quoted(watch)
    counts: list[int] = []
    with inside.bash(parallel) as process:
        while process.poll() is None:
            out = inside.run("bash", "-c", watched).stdout.split()
            counts.append(int(out[0]) if out else 0)
            time.sleep(0.2)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "All chunks complete!" in out
    assert counts == sorted(counts)
    assert any(0 < count < 45 for count in counts), counts
    if installed("watch"):
        with Terminal(inside) as terminal:
            terminal.run(watch)
            terminal.until("45 total")
    # The globs find outputs, and nothing of what lies beside them.
    assert inside.said(listed).strip() == "6"
    assert inside.said(watched).split() == ["45", "total"]

    said = inside.said(block("004", "bash", "Concatenate all rollouts")).splitlines()
    assert said[0] == "Total rollouts: 45"
    rewards = [row["reward"] for row in inside.rows("final_million_rollouts.jsonl")]
    assert float(said[1]) == pytest.approx(statistics.fmean(rewards)) == pytest.approx(2 / 3)
    assert inside.numbers("final_million_rollouts.jsonl") == list(range(45))

    merged = inside.run("rollmill", "merge", "merged.jsonl", "rollouts_chunk_*.jsonl")
    assert merged.returncode == 0, merged.stderr
    assert "(45 rows in 45 groups)" in merged.stdout
    assert [row["_ng_task_index"] for row in inside.rows("merged.jsonl")] == list(range(45))


def slots(place: Place, name: str) -> Counter[tuple]:
    """What an output has played, with its rewards."""
    found = ((row["rollmill"]["slot"], row) for row in place.rows(name))
    names = ("agent", "task", "occurrence", "repeat")
    return Counter((*(slot[part] for part in names), row["number"], row["reward"]) for slot, row in found)


@pytest.mark.parametrize("source", ["chunk_*.jsonl", "../../datasets/million_tasks.jsonl"])
def test_one_command_plays_the_slots_of_the_scripts_chunks(place, source):
    inside = chunked(place, rows=45, chunk=8)
    inside.said(block("004", "bash", "MAX_PARALLEL=4").replace("sleep 10", "sleep 0.2"))
    inside.said("rollmill merge merged.jsonl 'rollouts_chunk_*.jsonl'")
    one = (
        "ng_collect_rollouts +agent_name=my_agent +output_jsonl_fpath=one.jsonl +workers=2 +num_samples_in_parallel=20 "
        f"'+input_jsonl_fpath={source}'"
    )
    inside.said(one)
    assert slots(inside, "one.jsonl") == slots(inside, "merged.jsonl")
    assert len(slots(inside, "one.jsonl")) == 45
    assert sorted(row["_ng_task_index"] for row in inside.rows("one.jsonl")) == list(range(45))
    # Either way of naming the input is the same input.
    assert "Nothing to do" in inside.said(one.replace(source, "../../datasets/million_tasks.jsonl"))
    # Nor does it matter which of them made an output.
    inside.said("cp merged.jsonl copy.jsonl")
    assert "Nothing to do" in inside.said(one.replace("one.jsonl", "copy.jsonl"))


def test_equal_rows_of_several_chunks_are_slots_for_one_command_and_for_a_merge_that_is_told_so(place):
    inside = chunked(place, rows=10, chunk=4)
    # The first row stands in the first chunk and in the last.
    inside.said("head -n 1 chunk_00.jsonl >> chunk_02.jsonl")
    inside.said(block("004", "bash", "MAX_PARALLEL=4").replace("sleep 10", "sleep 0.2"))
    inside.said("rollmill merge merged.jsonl 'rollouts_chunk_*.jsonl'")
    inside.said("rollmill merge --occurrences all.jsonl 'rollouts_chunk_*.jsonl'")
    inside.said(
        "ng_collect_rollouts +agent_name=my_agent +output_jsonl_fpath=one.jsonl '+input_jsonl_fpath=chunk_*.jsonl'"
    )
    assert len(slots(inside, "one.jsonl")) == 11
    assert slots(inside, "one.jsonl") == slots(inside, "all.jsonl")
    assert (slots(inside, "one.jsonl") - slots(inside, "merged.jsonl")).total() == 1


@pytest.mark.parametrize(
    "put_together", ["cat rollouts_chunk_*.jsonl > a.jsonl", "rollmill merge a.jsonl rollouts_chunk_*.jsonl"]
)
def test_chunks_put_together_are_gone_on_with(place, put_together):
    inside = chunked(place, rows=10, chunk=4)
    inside.said(block("004", "bash", "MAX_PARALLEL=4").replace("sleep 10", "sleep 0.2"))
    inside.said(put_together)
    words = (
        "+agent_name=my_agent",
        "+input_jsonl_fpath=../../datasets/million_tasks.jsonl",
        "+output_jsonl_fpath=a.jsonl",
    )
    done = inside.run("ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stderr
    assert "Nothing to do" in done.stdout
    done = inside.run("ng_collect_rollouts", *words, "+num_repeats=2")
    assert done.returncode == 0, done.stderr
    assert inside.numbers("a.jsonl") == sorted([*range(10)] * 2)
    found = {(row["number"], row["_ng_task_index"], row["_ng_rollout_index"]) for row in inside.rows("a.jsonl")}
    assert len({(index, rollout) for _, index, rollout in found}) == 20 if "merge" in put_together else len(found) == 20
    assert len({(number, index) for number, index, _ in found}) == 10


def test_three_outputs_are_collected_differently_and_mixed(place, serve_model):
    server = serve_model("yes")
    place.configure(policy=served_at(server.url))
    sources = ("human_curated.jsonl", 0.2), ("synthetic_tasks.jsonl", 0.6), ("difficult_cases.jsonl", 0.4)
    for first, (words, temperature) in zip((0, 10, 20), sources, strict=True):
        place.write(words, *map(row, range(first, first + 10)))
        server.heard.clear()
        place.said(block("004", "bash", words))
        assert {body["temperature"] for body in server.heard} == {temperature}
    assert place.numbers("train_high_quality.jsonl") == list(range(10))
    assert place.numbers("train_exploration.jsonl") == list(range(10, 20))
    assert Counter(place.numbers("train_hard.jsonl")) == dict.fromkeys(range(20, 30), 3)

    (place.folder / "mix.py").write_text(block("004", "python", "target_mix"))
    out = place.said("python mix.py")
    assert "hard: sampled 30/30" in out
    assert "Final dataset: 50 rollouts" in out
    assert Counter(place.numbers("train_mixed.jsonl")) == dict.fromkeys(range(20), 1) | dict.fromkeys(range(20, 30), 3)
