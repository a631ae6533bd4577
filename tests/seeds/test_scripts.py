"""The scripts of NeMo Gym's training documents that read rollouts, run as they are written there on a real run's file.

What they rely on is tested without them in tests/store/test_schema.py.
"""

import json
import shutil
import statistics
import subprocess
from collections import Counter

import pytest
from tests.conftest import Shell
from tests.seeds.documents import block, needs_documents
from tests.seeds.place import needs

pytestmark = [pytest.mark.slow, needs_documents]


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Shell:
    """A folder with rollouts.jsonl, of a real model."""
    shell = Shell(tmp_path_factory.mktemp("run"))
    flags = ("--limit", "8", "--repeats", "2", "--out", "rollouts.jsonl")
    done = shell.run("rollmill", "collect", "arithmetic", "--model", "embedded", *flags, timeout=300)
    assert done.returncode == 0, done.stderr
    return shell


def printed(shell: Shell, script: str) -> str:
    (shell.folder / "script.py").write_text(script)
    done = shell.run("python", "script.py")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_seed_000_counts_the_tokens(run):
    script = block("000", "python", "tokens_per_sec")
    # It divides by the time that passes here, which a clock may take for none.
    out = printed(run, script.replace("# Run ng_collect_rollouts here", "time.sleep(0.1)"))
    total = sum(row["response"]["usage"]["total_tokens"] for row in run.rows("rollouts.jsonl"))
    assert total > 0
    assert f"Total tokens: {total:,}" in out


def test_seed_000_shows_the_distribution_of_rewards(run):
    out = printed(run, block("000", "python", "Quick distribution summary"))
    rewards = [row["reward"] for row in run.rows("rollouts.jsonl")]
    assert f"Min: {min(rewards):.2f}" in out
    assert f"Max: {max(rewards):.2f}" in out
    assert f"Mean: {statistics.fmean(rewards):.2f}" in out
    assert ("All rewards identical" in out) == (len(set(rewards)) == 1)


def test_seed_000_finds_no_broken_rollout_where_there_is_none(run):
    assert all(row["response"]["output_text"] for row in run.rows("rollouts.jsonl"))
    assert printed(run, block("000", "python", "Empty responses")) == ""


def test_seed_000_finds_the_broken_ones(run, tmp_path):
    shell = Shell(tmp_path)
    shell.write(
        "tasks.jsonl",
        *({"responses_create_params": {"input": f"Say {word!r}"}, "answer": 1} for word in ("a", "b", "c")),
    )
    for name, said in (("rollouts.jsonl", ""), ("errors.jsonl", "ERROR")):
        flags = ("--input", "tasks.jsonl", "--out", name)
        assert shell.run("rollmill", "collect", "arithmetic", "--model", f"scripted:{said}", *flags).returncode == 0
    script = block("000", "python", "Empty responses")
    assert printed(shell, script).count("Empty response") == 3
    (shell.folder / "rollouts.jsonl").write_bytes((shell.folder / "errors.jsonl").read_bytes())
    assert printed(shell, script).count("Error response") == 3


def test_seed_001_shows_the_distribution_of_rewards(run):
    out = printed(run, block("001", "python", "Reward range"))
    rewards = [row["reward"] for row in run.rows("rollouts.jsonl")]
    assert f"Reward range: {min(rewards):.2f} to {max(rewards):.2f}" in out
    assert f"Distribution: {Counter(round(reward, 1) for reward in rewards)}" in out


@needs("jq")
def test_seed_004_counts_and_averages_merged_outputs(run, tmp_path):
    for chunk in ("00", "01"):
        shutil.copy(run.folder / "rollouts.jsonl", tmp_path / f"rollouts_chunk_{chunk}.jsonl")
        shutil.copytree(run.folder / "rollouts.run", tmp_path / f"rollouts_chunk_{chunk}.run")
    script = block("004", "bash", "Concatenate all rollouts")
    done = subprocess.run(
        ["bash", "-euo", "pipefail"], input=script, cwd=tmp_path, check=True, capture_output=True, text=True
    )
    rewards = [row["reward"] for row in run.rows("rollouts.jsonl")] * 2
    assert "Total rollouts: 32" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(statistics.fmean(rewards))
