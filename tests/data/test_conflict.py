"""When metrics of an earlier time still hold."""

import json

import pytest

from rollmill.data.conflict import difference


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": None}, {}, None),
        ({"a": 1.004}, {"a": 1.0}, None),
        ({"a": 1.006}, {"a": 1.0}, "a: 1.006 was, 1.0 is"),
        ({"a": 0.0104}, {"a": 0.01}, None),
        ({"a": 0.0106}, {"a": 0.01}, "a: 0.0106 was, 0.01 is"),
        ({"a": {"b": 5}}, {"a": {"b": 6}}, "a.b: 5 was, 6 is"),
        ({"a": 1}, {}, "a: 1 was, null is"),
        ({"a": "x"}, {"a": "y"}, 'a: "x" was, "y" is'),
        ({"a": ["x", {"b": 1.001}]}, {"a": [{"b": 1.0}, "x"]}, None),
        ({"a": ["x", "x"]}, {"a": ["x", "y"]}, 'a: ["x","x"] was, ["x","y"] is'),
        ({"a": ["x"]}, {"a": ["x", "y"]}, 'a: ["x"] was, ["x","y"] is'),
        ({"a": "x" * 100}, {"a": "y"}, f'a: "{"x" * 56}... was, "y" is'),
    ],
)
def test_what_differs_is_named(tmp_path, before, now, said):
    path = tmp_path / "a_metrics.json"
    path.write_text(json.dumps(before))
    assert difference(path, now) == said


def test_what_is_not_there_and_what_is_no_json(tmp_path):
    path = tmp_path / "a_metrics.json"
    assert difference(path, {}) is None
    path.write_text("{torn")
    assert difference(path, {}).startswith("it is not JSON")
