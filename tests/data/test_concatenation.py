"""Files that count for themselves, one after the other."""

import json

from tests.data.rows import foreign, write

from rollmill.data.concatenation import Concatenation


def places(*files) -> list[tuple[int, int]]:
    return [(row.task_index, row.rollout_index) for row in Concatenation(files)]


def test_rows_whose_indices_are_their_own_keep_their_bytes(tmp_path):
    one = write(tmp_path / "a.jsonl", json.dumps(foreign(3, 0, 1.50)), json.dumps(foreign(3, 1, 0.0), indent=None))
    other = write(tmp_path / "b.jsonl", foreign(3, 2, 1.0), foreign(1, 0, 1.0))
    rows = Concatenation([one, other])
    assert b"".join(row.content for row in rows) == one.read_bytes() + other.read_bytes()
    assert rows.moved == 0


def test_other_tasks_under_the_same_index_get_others(tmp_path):
    one = write(tmp_path / "a.jsonl", *(foreign(n, 0, 1.0) for n in range(3)))
    theirs = [{**foreign(n + 10, r, 1.0), "_ng_task_index": n} for n in (1, 0) for r in (0, 1)]
    other = write(tmp_path / "b.jsonl", *theirs)
    third = write(tmp_path / "c.jsonl", {**foreign(10, 2, 1.0), "_ng_task_index": 0})
    rows = Concatenation([one, other, third])
    found = [json.loads(row.content) for row in rows]
    assert [(row["_ng_task_index"], row["_ng_rollout_index"], row["answer"]) for row in found] == [
        (0, 0, "of 0"),
        (1, 0, "of 1"),
        (2, 0, "of 2"),
        (3, 0, "of 11"),
        (3, 1, "of 11"),
        (4, 0, "of 10"),
        (4, 1, "of 10"),
        (4, 2, "of 10"),
    ]
    assert rows.moved == 5


def test_more_rollouts_of_the_same_task_are_of_its_group(tmp_path):
    one = write(tmp_path / "a.jsonl", foreign(0, 0, 1.0), foreign(0, 1, 1.0))
    other = write(tmp_path / "b.jsonl", foreign(0, 0, 1.0), foreign(0, 3, 1.0), foreign(0, 1, 0.0))
    assert places(one, other) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


def test_the_same_task_of_two_agents_is_two(tmp_path):
    one = write(tmp_path / "a.jsonl", foreign(0, 0, 1.0, agent="a"))
    other = write(tmp_path / "b.jsonl", foreign(0, 0, 1.0, agent="b"))
    assert places(one, other) == [(0, 0), (1, 0)]


def test_rows_without_indices_stay_without_and_belong_to_what_was_asked(tmp_path):
    row = {"responses_create_params": {"input": "x"}, "reward": 1}
    files = [write(tmp_path / name, row, {**row, "responses_create_params": {"input": name}}) for name in "ab"]
    rows = list(Concatenation(files))
    assert [(row.task_index, row.rollout_index) for row in rows] == [(0, 0), (1, 0), (0, 1), (2, 0)]
    assert b"".join(row.content for row in rows) == b"".join(file.read_bytes() for file in files)
