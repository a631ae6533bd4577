"""The files of examples that a server folder is asked for."""

from pathlib import Path

import pytest

from rollmill.cli.examples import faults


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with all that is asked for."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/example.jsonl").write_text("{}\n" * 5 + "\n")
    (tmp_path / "data/example_metrics.json").write_text('{"name": "example", "Number of examples": 5}')
    (tmp_path / "data/example_rollouts.jsonl").write_text("{}\n" * 5)
    return tmp_path


def test_all_that_is_asked_for(folder: Path):
    assert list(faults(folder)) == []


def test_nothing_of_it(tmp_path: Path):
    assert list(faults(tmp_path)) == [
        "data/example.jsonl is missing: five tasks, a row each",
        "data/example_metrics.json is missing: `ng_prepare_data +mode=example_validation` makes it",
        "data/example_rollouts.jsonl is missing: `rollmill collect` on the five tasks makes it",
    ]


def test_other_numbers_and_what_is_in_conflict(folder: Path):
    (folder / "data/example.jsonl").write_text("{}\n" * 6)
    (folder / "data/example_metrics.json").write_text('{"Number of examples": 4}')
    (folder / "data/example_metrics_conflict.json").write_text("{}")
    (folder / "data/example_rollouts.jsonl").write_text("")
    assert list(faults(folder)) == [
        "data/example.jsonl: 5 rows, not 6",
        'data/example_metrics.json: "Number of examples" is 5, not 4',
        "data/example_metrics_conflict.json: settle what is in conflict, and delete it",
        "data/example_rollouts.jsonl: 5 rows, not 0",
    ]


@pytest.mark.parametrize(
    ("metrics", "said"), [("{", "truncated"), ("{}", "not missing"), ('{"Number of examples": "5"}', "Expected `int")]
)
def test_metrics_that_say_nothing(folder: Path, metrics: str, said: str):
    (folder / "data/example_metrics.json").write_text(metrics)
    [fault] = faults(folder)
    assert fault.startswith("data/example_metrics.json: ")
    assert said in fault
