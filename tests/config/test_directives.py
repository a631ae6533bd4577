"""Blocks that build on other blocks."""

import re
from typing import Any

import pytest
import yaml

from rollmill.config.directives import apply_directives
from rollmill.errors import ConfigError


def expand(text: str) -> dict[str, Any]:
    return apply_directives(yaml.safe_load(text))


@pytest.mark.parametrize("form", ["${inherit_from:base.block}", "{_inherit_from: base.block}"])
def test_inheriting_moves(form: str) -> None:
    assert expand(f"mine: {form}\nbase: {{block: {{x: 1}}, other: 2}}") == {"mine": {"x": 1}, "base": {"other": 2}}


@pytest.mark.parametrize("form", ["${copy:base}", "{_copy: base}"])
def test_copying_keeps(form: str) -> None:
    expanded = expand(f"mine: {form}\nbase: {{x: {{y: 1}}}}")
    assert expanded == {"mine": {"x": {"y": 1}}, "base": {"x": {"y": 1}}}
    assert expanded["mine"]["x"] is not expanded["base"]["x"]


def test_siblings_are_merged_over() -> None:
    text = "base: {x: {a: 1, b: 2}, y: 3}\nmine: {_inherit_from: base, x: {b: 9}, z: 4}"
    assert expand(text) == {"mine": {"x": {"a": 1, "b": 9}, "y": 3, "z": 4}}


def test_several_may_inherit_from_one() -> None:
    assert expand("base: {x: 1}\na: ${inherit_from:base}\nb: {_inherit_from: base, x: 2}") == {
        "a": {"x": 1},
        "b": {"x": 2},
    }


def test_a_scalar_a_list_and_an_item_of_a_list() -> None:
    assert expand("n: 3\nl: [1]\na: ${copy:n}\nb: ${copy:l}\nc: [{_copy: d}]\nd: {x: 1}") == {
        "n": 3,
        "l": [1],
        "a": 3,
        "b": [1],
        "c": [{"x": 1}],
        "d": {"x": 1},
    }


def test_a_chain_and_a_path_through_another_directive() -> None:
    text = "a: {_copy: b, own: 1}\nb: {_copy: c, x: {y: 2}}\nc: {x: {z: 3}}\nd: ${copy:a.x}"
    expanded = expand(text)
    assert expanded["a"] == {"x": {"y": 2, "z": 3}, "own": 1}
    assert expanded["d"] == {"y": 2, "z": 3}


def test_the_same_source_twice_in_one_block_is_no_circle() -> None:
    assert expand("base: {x: 1}\na: {_copy: base, inner: {_copy: base}}")["a"] == {"x": 1, "inner": {"x": 1}}


def test_deleting_keys() -> None:
    assert expand('a: {_delete_key: "x, y", x: 1, y: 2, z: 3}') == {"a": {"z": 3}}
    assert expand("a: {_delete_key: [x], x: 1}") == {"a": {}}
    assert expand('b: {x: 1, y: 2}\na: {_inherit_from: b, _delete_key: "x"}') == {"a": {"y": 2}}


def test_deleting_inside_what_is_inherited() -> None:
    assert expand('b: {in: {x: 1, y: 2}}\na: {_inherit_from: b, in: {_delete_key: "x"}}') == {"a": {"in": {"y": 2}}}


def test_building_on_a_missing_value_is_missing() -> None:
    assert expand("b: ???\na: {_copy: b.c, x: 1}") == {"a": "???", "b": "???"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: ${copy:bas.x}\nbase: {x: 1}", 'a: there is no "bas.x" to build on'),
        (
            "a: {b: '${copy:base.xxy}'}\nbase: {xxx: 1}",
            'a.b: there is no "base.xxy" to build on; did you mean "base.xxx"?',
        ),
        ("a: ${copy:b}\nb: ${copy:a}", "blocks inherit in a circle: b -> a -> b"),
        ("a: {b: '${copy:a}'}", "circle"),
        ("a: {_copy: a.b, b: {c: 1}}", "circle"),
        ("a: {_copy: n, x: 1}\nn: 3", 'a: "n" is not a mapping; nothing can be merged over it'),
        ("a: {_copy: b, _inherit_from: b}\nb: {}", "a: expected one of _inherit_from and _copy, got both"),
        ("a: {_copy: [b]}", "a._copy: expected a dotted path"),
        ("a: {_delete_key: xx, xy: 1}", 'a._delete_key: there is no "xx" here'),
    ],
)
def test_what_cannot_be_built(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        expand(text)
