"""`rollmill aggregate` and `ng_aggregate_rollouts` as processes."""

import gzip
import json

import pytest
import zstandard
from tests.data.rows import foreign

from rollmill.quality.aggregate import aggregate


@pytest.fixture
def shards(shell):
    """Two outputs with two tasks each, one of which they share."""
    for number, names in enumerate(("xy", "yz")):
        shell.write("tasks.in", *({"responses_create_params": {"input": name}, "answer": 1} for name in names))
        words = ("--input", "tasks.in", "--out", f"shards/{number}.jsonl", "--model", "scripted:1", "--repeats", "2")
        done = shell.run("rollmill", "collect", "arithmetic", *words, "+nemo_gym_files=true")
        assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("shards")
def test_outputs_of_ours_are_merged_and_counted(shell):
    done = shell.run("ng_aggregate_rollouts", "+input_glob=shards/*.jsonl", "+output_jsonl_fpath=all.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == ["shards/0.jsonl  4 kept", "shards/1.jsonl  2 kept, 2 doubled"]
    assert "Rollouts: all.jsonl (6 rows in 3 groups, 2 doubled left out)" in done.stdout
    assert "Left out, as they hold no rollouts: shards/0_failures.jsonl, shards/0_materialized" in done.stdout
    assert 'Key metrics for arithmetic_simple_agent:\n{\n  "mean/reward": 1.0,' in done.stdout
    said = (
        "Finished rollout aggregation! View results at:\nRollouts: all.jsonl\nAggregate metrics: all_aggregate_metrics"
    )
    assert done.stdout.endswith(f"{said}.json\n")
    (written,) = json.loads((shell.folder / "all_aggregate_metrics.json").read_text())
    del written["agent_ref"]
    assert written == aggregate(shell.rows("all.jsonl"))
    again = shell.run("rollmill", "aggregate", "shards/*.jsonl", "--out", "all.jsonl")
    assert again.returncode == 2
    assert again.stderr == "rollmill: all.jsonl exists: move it away, or give the merged output another name\n"


@pytest.mark.usefixtures("shards")
def test_outputs_that_were_cut_or_compressed_otherwise_are_joined_all_the_same(shell):
    text = (shell.folder / "shards/0.jsonl").read_bytes()
    (shell.folder / "cut.jsonl").write_bytes(text + b'{"torn')
    (shell.folder / "cut.jsonl.zst").write_bytes(zstandard.compress(text) + zstandard.compress(text)[:-9])
    (shell.folder / "a.jsonl.gz").write_bytes(gzip.compress(text))
    for name in ("cut.jsonl", "cut.jsonl.zst", "a.jsonl.gz"):
        done = shell.run("rollmill", "aggregate", name, "--out", f"{name[:3]}{name[-3:]}.jsonl")
        assert done.returncode == 0, done.stderr
        assert len(shell.rows(f"{name[:3]}{name[-3:]}.jsonl")) == 4


@pytest.mark.usefixtures("shards")
def test_metrics_alone_are_those_of_the_merged_file(shell):
    files = "shards/0.jsonl,shards/1.jsonl"
    words = (f"+input_glob='{files}'", "+output_jsonl_fpath=only.jsonl", "+merge_shards=false")
    done = shell.run("ng_aggregate_rollouts", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Rollouts:" not in done.stdout
    assert sorted(path.name for path in shell.folder.iterdir() if path.name.startswith(("only", "."))) == [
        "only_aggregate_metrics.json"
    ]
    shell.run("rollmill", "aggregate", *files.split(","), "--out", "all.jsonl")
    assert (shell.folder / "only_aggregate_metrics.json").read_text() == (
        shell.folder / "all_aggregate_metrics.json"
    ).read_text()
    # What a merged file comes to can be asked of the file itself.
    done = shell.run("rollmill", "aggregate", "all.jsonl", "--out", "all.jsonl", "--metrics-only")
    assert done.returncode == 0, done.stderr


def test_rows_of_another_origin_are_put_one_after_the_other(shell):
    for number, reward in enumerate((0.0, 1.0)):
        rows = [{**foreign(n + number, r, reward), "_ng_task_index": n} for n in range(2) for r in range(2)]
        shell.write(f"theirs_{number}.jsonl", *rows)
    done = shell.run("rollmill", "aggregate", "theirs_*.jsonl", "--out", "all/a.jsonl.zst")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [
        "8 rollouts of 2 files",
        "4 rows got new indices: an earlier file has theirs for others",
    ]
    assert shell.run("rollmill", "aggregate", "all/a.jsonl.zst", "--out", "b.jsonl").returncode == 0
    rows = shell.rows("b.jsonl")
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows[4:]] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    metrics = [json.loads((shell.folder / name).read_text()) for name in ("all/a_aggregate_metrics.json", METRICS)]
    assert metrics[0] == metrics[1] == [{"agent_ref": {"name": "theirs"}, **aggregate(rows)}]
    assert not list(shell.folder.rglob(".*"))


METRICS = "b_aggregate_metrics.json"


def test_what_is_wrong_is_one_line(shell):
    shell.write("a.jsonl", foreign(0, 0, 1.0), '{"responses_create_params": {}}')
    shell.write("empty.jsonl")
    for words, said in (
        (("+input_glob=a.jsonl",), "missing: output_jsonl_fpath"),
        (("+input_glob=*.gz", "+output_jsonl_fpath=b.jsonl"), "*.gz: no file matches"),
        (("+input_glob=a.jsonl", "+output_jsonl_fpath=b.jsonl"), "a.jsonl, line 2: no rollout: it has no reward"),
        (("+input_glob=empty.jsonl", "+output_jsonl_fpath=b.jsonl"), "there is no rollout in empty.jsonl"),
        (("+input_glob=a.jsonl", "+output_jsonl_fpath=a.jsonl"), "a.jsonl is one of the inputs"),
    ):
        done = shell.run("ng_aggregate_rollouts", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert said in done.stderr
    assert sorted(path.name for path in shell.folder.iterdir()) == ["a.jsonl", "empty.jsonl"]
