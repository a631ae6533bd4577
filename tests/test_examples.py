"""The example files of each environment are those that its example tasks make."""

import json
from pathlib import Path

import pytest

import rollmill as rm
from rollmill.cli.main import run
from rollmill.store.schema import read_row
from rollmill.taskset import read_rows

ENVIRONMENTS = sorted(path.parent for path in (Path(rm.__file__).parent / "environments").glob("*/__init__.py"))


@pytest.mark.parametrize("folder", ENVIRONMENTS, ids=lambda folder: folder.name)
def test_metrics_are_those_of_the_tasks(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["prepare", folder.name, "--mode", "example_validation", "--out", str(tmp_path)]) == 0
    (made,) = tmp_path.glob("*_simple_agent_example_metrics.json")
    assert json.loads((folder / "data/example_metrics.json").read_text()) == json.loads(made.read_text())


@pytest.mark.parametrize("folder", ENVIRONMENTS, ids=lambda folder: folder.name)
def test_rollouts_are_of_the_tasks(folder: Path):
    tasks = [rm.read_task(row, rm.Task).identity for _, row in read_rows(folder / "data/example.jsonl")]
    rollouts = [read_row(row, rm.Task) for _, row in read_rows(folder / "data/example_rollouts.jsonl")]
    assert sorted(rollout.task.identity for rollout in rollouts) == sorted(tasks)
    assert all(rollout.reward is not None for rollout in rollouts)
