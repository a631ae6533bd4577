"""What a dataset holds, against the standard library's statistics."""

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.data.metrics import Metrics, Numbers
from rollmill.data.rollouts import read_fields

WORDS = "Json-dumped number of words (proxy for token count)"


def metrics(*rows: dict, times: int = 1) -> Metrics:
    made = Metrics()
    for row in rows:
        made.add(read_fields(json.dumps(row).encode(), "here"), times)
    return made


def row(**fields) -> dict:
    return {"responses_create_params": {"input": "Say it."}, **fields}


def block(total: int, average: float, least: float, most: float, deviation: float) -> dict:
    return {
        "Total # non-null values": total,
        "Average": average,
        "Min": least,
        "Max": most,
        "Standard deviation": deviation,
    }


@given(st.lists(st.tuples(st.floats(-1e4, 1e4), st.integers(1, 3)), min_size=1), st.integers(0, 50))
def test_a_stream_of_numbers_in_two_parts_is_what_their_statistics_are(values, cut):
    one, other = Numbers(), Numbers()
    for value, times in values[:cut]:
        one.add(value, times)
    for value, times in values[cut:]:
        other.add(value, times)
    one.merge(other)
    every = [value for value, times in values for _ in range(times)]
    assert (one.count, one.least, one.most) == (len(every), min(every), max(every))
    assert one.mean == pytest.approx(statistics.fmean(every), abs=1e-6)
    deviation = statistics.stdev(every) if len(every) > 1 else 0.0
    assert one.said()["Standard deviation"] == pytest.approx(deviation, abs=0.01)


def test_rows_are_counted_under_nemo_gyms_names():
    asked = {"input": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}], "temperature": 0.5}
    rows = [
        {"responses_create_params": {**asked, "tools": [{}, {}]}, "level": 1, "tags": ["x", "y", 2], "id": "a"},
        {"responses_create_params": {**asked, "tools": []}, "level": 2.5, "tags": ["x"], "id": "b", "hard": True},
        {
            "responses_create_params": {"input": "x", "temperature": "low"},
            "level": None,
            "nested": {"n": 1},
            "response": {"n": 1},
        },
    ]
    words = [len(json.dumps(row["responses_create_params"]).split()) for row in rows]
    assert metrics(*rows).said() == {
        "Number of examples": 3,
        "Number of tools": block(2, 1.0, 0.0, 2.0, 1.41),
        WORDS: block(3, round(statistics.fmean(words), 2), min(words), max(words), round(statistics.stdev(words), 2)),
        "Number of turns": block(3, 1.0, 1.0, 1.0, 0.0),
        "Temperature": block(2, 0.5, 0.5, 0.5, 0.0),
        "hard": block(1, 1.0, 1.0, 1.0, 0.0),
        "id": {"unique_count": 2, "total_count": 2},
        "level": block(2, 1.75, 1.0, 2.5, 1.06),
        "tags": {"unique_count": 2, "total_count": 3},
    }


def test_small_numbers_keep_three_places():
    assert metrics(row(p=0.12345), row(p=-0.5)).said()["p"] == block(2, -0.188, -0.5, 0.123, 0.441)


def test_a_repeated_row_counts_as_often_as_it_stands_there():
    once, twice = metrics(row(n=1), row(n=1), row(n=4), row(n=4)).said(), metrics(row(n=1), row(n=4), times=2).said()
    assert once == twice
    assert twice["Number of examples"] == 4


def test_datasets_together_are_what_all_their_rows_are():
    one, other = metrics(row(n=1, s="x")), metrics(row(n=3, s="y"), row(n=5, s="x"))
    one.merge(other)
    assert one.said() == metrics(row(n=1, s="x"), row(n=3, s="y"), row(n=5, s="x")).said()


def test_nothing_is_zeros():
    assert Metrics().said()["Temperature"] == block(0, 0.0, 0.0, 0.0, 0.0)
