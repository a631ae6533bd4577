"""`rollmill merge` as a process, on what `rollmill collect` made."""

import json
import time

import pytest


def tasks(*names: str) -> list[dict]:
    return [{"responses_create_params": {"input": f"Say {name}"}, "answer": 1, "name": name} for name in names]


@pytest.fixture
def collect(shell):
    """Collect an output from some tasks: `collect("a.jsonl", "x", "y")`."""

    def run(out: str, *names: str, said: str = "1", flags: tuple[str, ...] = ()) -> None:
        shell.write("tasks.in", *tasks(*names))
        words = ("--input", "tasks.in", "--out", out, "--model", f"scripted:{said}", *flags)
        done = shell.run("rollmill", "collect", "arithmetic", *words)
        assert done.returncode == 0, done.stderr

    return run


def test_chunks_are_merged_shown_and_gone_on_with(shell, collect):
    collect("part_0.jsonl", "x", "y")
    collect("part_1.jsonl", "z", "y", flags=("--repeats", "2"))
    done = shell.run("rollmill", "merge", "all.jsonl", "part_*.jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "part_0.jsonl  2 kept",
        "part_1.jsonl  3 kept, 1 doubled",
        "Rollouts: all.jsonl (5 rows in 3 groups, 1 doubled left out)",
        "What became of each input: all.run/merged.json",
    ]
    found = {(row["name"], row["_ng_task_index"], row["_ng_rollout_index"]) for row in shell.rows("all.jsonl")}
    places = {(index, number) for _, index, number in found}
    assert len(places) == 5
    assert len({(name, index) for name, index, _ in found}) == 3

    shown = shell.run("rollmill", "show", "all.jsonl", "--row", "5")
    assert shown.returncode == 0, shown.stderr
    assert "task 1, rollout 1" in shown.stdout or "task 2, rollout" in shown.stdout

    collect("all.jsonl", "x", "y", "z", "new", flags=("--repeats", "2"))
    rows = shell.rows("all.jsonl")
    assert sorted(row["name"] for row in rows) == ["new", "new", "x", "x", "y", "y", "z", "z"]
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == 8
    assert len({(row["name"], row["_ng_task_index"]) for row in rows}) == 4


def test_what_two_chunks_of_one_dataset_share_can_be_kept(shell, collect):
    collect("a.jsonl", "x", "y")
    collect("b.jsonl", "x")
    done = shell.run("rollmill", "merge", "all.jsonl", "a.jsonl", "b.jsonl", "--occurrences")
    assert done.returncode == 0, done.stderr
    assert "(3 rows in 2 groups)" in done.stdout
    collect("all.jsonl", "x", "y", "x")
    assert [row["name"] for row in shell.rows("all.jsonl")].count("x") == 2


def test_another_model_is_refused_unless_mixed(shell, collect):
    collect("a.jsonl", "x")
    collect("b.jsonl", "y", flags=("--temperature", "0.5"))
    done = shell.run("rollmill", "merge", "all.jsonl", "a.jsonl", "b.jsonl")
    assert done.returncode == 2
    assert "b.jsonl is of another experiment of arithmetic_simple_agent: sampling was {}, is" in done.stderr
    assert "--mixed" in done.stderr
    assert not list(shell.folder.glob("*all*"))
    assert not list(shell.folder.glob(".all*"))
    assert shell.run("rollmill", "merge", "--mixed", "all.jsonl", "a.jsonl", "b.jsonl").returncode == 0
    assert len(shell.rows("all.jsonl")) == 2


def test_compressed_outputs_are_merged(shell, collect):
    collect("a.jsonl.zst", "x")
    collect("b.jsonl", "y")
    done = shell.run("rollmill", "merge", "all.jsonl.zst", "a.jsonl.zst", "b.jsonl")
    assert done.returncode == 0, done.stderr
    assert shell.run("rollmill", "merge", "plain.jsonl", "all.jsonl.zst").returncode == 0
    assert [row["name"] for row in shell.rows("plain.jsonl")] == ["x", "y"]


def test_what_cannot_be_merged_is_one_line(shell, collect):
    collect("a.jsonl", "x")
    before = (shell.folder / "a.jsonl").read_bytes()
    for words, said in (
        (("a.jsonl", "a.jsonl"), "one of the inputs"),
        (("a.txt", "a.jsonl"), "a.txt: the name of an output ends in .jsonl or .jsonl.zst"),
        (("b.jsonl", "missing.jsonl"), "missing.jsonl: there is no such output"),
        (("b.jsonl", "part_*.jsonl"), "part_*.jsonl: no file matches"),
        (("a.run/x/b.jsonl", "tasks.in"), "there is no rollout in tasks.in"),
    ):
        done = shell.run("rollmill", "merge", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("rollmill: ")
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr
    assert (shell.folder / "a.jsonl").read_bytes() == before


def test_what_is_skipped_is_said_with_its_place(shell, collect):
    collect("a.jsonl", "x")
    with (shell.folder / "a.jsonl").open("a") as file:
        file.write('{"reward": 1}\n{"torn')
    done = shell.run("rollmill", "merge", "all.jsonl", "a.jsonl")
    assert done.returncode == 0, done.stderr
    assert "a.jsonl  1 kept, 1 torn, 1 of another origin" in done.stdout
    assert "skipped line 2: foreign, line 3: torn" in done.stdout
    merged = json.loads((shell.folder / "all.run/merged.json").read_text())
    assert merged["inputs"][0] == {
        "file": "a.jsonl",
        "kept": 1,
        "doubled": 0,
        "failed": 0,
        "torn": 1,
        "foreign": 1,
        "garbage": 0,
        "places": ["line 2: foreign", "line 3: torn"],
    }


@pytest.fixture
def many(shell, collect):
    """a.jsonl with rollouts of 5000 tasks."""
    collect("one.out", "x")
    (row,) = shell.rows("one.out")
    text = json.dumps(row)
    shell.write("a.jsonl", *(text.replace(row["rollmill"]["slot"]["task"], f"{n:032x}") for n in range(5000)))


@pytest.mark.usefixtures("many")
def test_a_merge_that_is_killed_leaves_nothing_and_can_be_made_again(shell):
    with shell.start("rollmill", "merge", "all.jsonl", "a.jsonl") as process:
        deadline = time.monotonic() + 60
        while not (shell.folder / ".all.merging/all.jsonl").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
        process.kill()
    assert process.returncode == -9
    assert sorted(path.name for path in shell.folder.glob("*all*")) == [".all.merging"]
    done = shell.run("rollmill", "merge", "all.jsonl", "a.jsonl")
    assert done.returncode == 0, done.stderr
    assert len({row["_ng_task_index"] for row in shell.rows("all.jsonl")}) == 5000
    assert not (shell.folder / ".all.merging").exists()


@pytest.mark.usefixtures("many")
def test_a_merge_without_room_leaves_nothing(shell):
    done = shell.run("bash", "-c", "ulimit -f 1500; exec rollmill merge all.jsonl a.jsonl")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "all.jsonl" in done.stderr
    assert not list(shell.folder.glob("*all*"))
