import json
import random

import pytest
from msgspec import Raw
from tests.store.rows import append, failed, opened, rewarded, task

from rollmill.errors import StoreError
from rollmill.store.aggregate import Aggregate
from rollmill.store.inputs import read_inputs
from rollmill.store.lines import Place
from rollmill.store.reader import NAME, read_index
from rollmill.store.streamed import replacing
from rollmill.types import decode, encode


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_the_input_row_of_a_rollout_is_read_where_the_rollout_is_in_any_order(tmp_path, name):
    path = tmp_path / name
    with opened(path) as store:
        for start in range(0, 60, 20):
            append(store, *(rewarded(f"task {number}", 0, number) for number in range(start, start + 20)))
        with read_index(store.folder / NAME) as reader:
            answers = Aggregate(reader)
            places = {one.task_index: one.place for one in answers.ended(answers.agents()[0])}
    order = list(places)
    random.Random(0).shuffle(order)
    with read_inputs(path) as inputs:
        for number in order:
            assert decode(encode(inputs.of_rollout(places[number]))) == json.loads(
                encode(task(f"task {number}").fields)
            )


def test_a_failure_gives_its_row_where_the_log_has_it(tmp_path):
    path = tmp_path / "a.jsonl"
    with opened(path) as store:
        row = Raw(b'{"responses_create_params": {"input": "x"}, "id": 7}')
        place = store.failures.append(failed("a"), Raw(b"null"), final=True, task=row)
        without = store.failures.append(failed("b"), Raw(b"null"), final=True)
    with read_inputs(path) as inputs:
        assert decode(inputs.of_failure(place).row["id"]) == 7
        assert inputs.of_failure(place).failure.kind == "timeout"
        assert inputs.of_failure(without).row is None


def test_an_output_that_is_gone_is_said(tmp_path):
    with read_inputs(tmp_path / "a.jsonl") as inputs, pytest.raises(StoreError, match=r"a\.jsonl, byte 0"):
        inputs.of_rollout(Place(0, 10))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    folder = tmp_path / "a.run"
    folder.mkdir()

    def write(*pieces):
        with replacing(path, folder) as file:
            for piece in pieces:
                if piece is None:
                    raise ValueError("in the middle")
                file.write(piece)

    with pytest.raises(ValueError, match="in the middle"):
        write(b"new", None)
    assert path.read_text() == "old"
    assert list(folder.iterdir()) == []
    write(b"n", b"ew")
    assert path.read_text() == "new"
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_gone_is_said(tmp_path):
    with pytest.raises(StoreError, match="cannot be written"), replacing(tmp_path / "a.json", tmp_path / "gone"):
        pass
