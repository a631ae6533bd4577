"""The command line's grammar."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.config.overrides import apply, parse, parse_value
from rollmill.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("null", None),
        ("NULL", None),
        ("true", True),
        ("False", False),
        ("0", 0),
        ("-12", -12),
        ("1_000", 1000),
        ("007", "007"),
        ("0.25", 0.25),
        (".5", 0.5),
        ("3.", 3.0),
        ("1e-3", 0.001),
        ("1.5E3", 1500.0),
        ("1.0.2", "1.0.2"),
        ("2026-01-31", "2026-01-31"),
        ("nan", "nan"),
        ("data/train.jsonl", "data/train.jsonl"),
        ("/data/my tasks.jsonl", "/data/my tasks.jsonl"),
        ("http://127.0.0.1:8000/v1?a=b&c=d", "http://127.0.0.1:8000/v1?a=b&c=d"),
        ("a=b=c", "a=b=c"),
        ("a.jsonl,b.jsonl", "a.jsonl,b.jsonl"),
        ("it's", "it's"),
        ("'7'", "7"),
        ('"null"', "null"),
        ("'[a,b]'", "[a,b]"),
        (r"'it\'s'", "it's"),
        (r"'\frac{1}{2}'", r"\frac{1}{2}"),
        ("''", ""),
        ("[]", []),
        ("[1,2.5,three,null]", [1, 2.5, "three", None]),
        ("[ a , b ,]", ["a", "b"]),
        ("[a.yaml,\n  b.yaml]", ["a.yaml", "b.yaml"]),
        ("['a,b',\"c]d\"]", ["a,b", "c]d"]),
        ("[[1],[2,[3]]]", [[1], [2, [3]]]),
        ("{}", {}),
        ("{a: b, c: [1]}", {"a": "b", "c": [1]}),
        ("{a:1,b:{c:true}}", {"a": 1, "b": {"c": True}}),
        ('{"effort": "low", "n": 3}', {"effort": "low", "n": 3}),
        ("{url: http://host:80/v1, empty: , last:}", {"url": "http://host:80/v1", "empty": "", "last": ""}),
        ("${my_list}", "${my_list}"),
        ("[${a.b},${oc.env:X,y},c]", ["${a.b}", "${oc.env:X,y}", "c"]),
        ("{a: ${oc.env:X,${oc.env:Y,z}}}", {"a": "${oc.env:X,${oc.env:Y,z}}"}),
    ],
)
def test_values(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "action", "path"),
    [
        ("limit=3", "set", ("limit",)),
        ("+limit=3", "add", ("limit",)),
        ("++limit=3", "add", ("limit",)),
        ("+responses_create_params.temperature=0.2", "add", ("responses_create_params", "temperature")),
        ("+num_repeats.my-agent=3", "add", ("num_repeats", "my-agent")),
        ("+a.datasets[0].name=x", "add", ("a", "datasets", "0", "name")),
        ("~limit", "delete", ("limit",)),
    ],
)
def test_forms(text: str, action: str, path: tuple[str, ...]) -> None:
    override = parse(text)
    assert (override.action, override.path) == (action, path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--limit", "expected key=value"),
        ("limit", "expected key=value"),
        ("+limit", "expected key=value"),
        ("~limit=3", "expected key=value"),
        ("+=3", "expected a key"),
        ("+a..b=3", "expected a key"),
        ("--limit=3", "expected a key"),
        ("+a=[1,2", 'expected "," or "]" at character 5'),
        ("+a=[1,,2]", "expected a value at character 4"),
        ("+a=[1] 2", "expected nothing after character 4"),
        ("+a={b}", 'expected "key: value" at character 3'),
        ("+a={b: 1", 'expected "," or "}"'),
        ("+a='b", "expected a closing '"),
        ("+a='b' c", "expected nothing after character 4"),
    ],
)
def test_a_malformed_override_is_quoted_and_says_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert f'"{text}"' in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_malformed_secret_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("+policy_api_key=[sk-123456")
    assert "sk-123456" not in str(caught.value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def _written(value: Any) -> str:
    """A value as the grammar writes it, with every text in quotes."""
    if isinstance(value, str):
        return "'" + value.replace("'", r"\'") + "'"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(key)}: {_written(item)}' for key, item in value.items())}}}"
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if not isinstance(value, int)
        else (str(value).lower())
    )


@given(_json.filter(lambda value: "\\" not in repr(value)))
def test_what_is_written_is_read(value: Any) -> None:
    assert parse_value(_written(value)) == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = parse_value(text)
    except ValueError:
        return
    assert not isinstance(value, float) or not math.isnan(value)


def put(tree: dict[str, Any], *words: str, known: tuple[str, ...] = ("limit",)) -> dict[str, Any]:
    return apply(tree, map(parse, words), known=known)


def test_adding_reaches_into_what_is_there() -> None:
    tree = {"a": {"b": 1, "c": 2}}
    assert put(tree, "+a.b=3", "+d.e.f=4") == {"a": {"b": 3, "c": 2}, "d": {"e": {"f": 4}}}
    assert tree == {"a": {"b": 1, "c": 2}}


def test_the_last_override_wins() -> None:
    assert put({}, "+limit=1", "+limit=2") == {"limit": 2}


def test_a_mapping_is_merged_and_a_list_replaced() -> None:
    tree = {"a": {"b": 1}, "l": [1, 2]}
    assert put(tree, "+a={c: 2}", "+l=[3]") == {"a": {"b": 1, "c": 2}, "l": [3]}


def test_an_item_of_a_list() -> None:
    tree = {"datasets": [{"name": "a"}, {"name": "b"}]}
    assert put(tree, "+datasets.1.name=c", "~datasets[0]") == {"datasets": [{"name": "c"}]}
    with pytest.raises(ConfigError, match='the index of one of 2 items, got "2"'):
        put(tree, "+datasets.2.name=c")


def test_over_a_missing_value_or_nothing() -> None:
    assert put({"a": "???", "b": None}, "+a.b=1", "+b.c=2") == {"a": {"b": 1}, "b": {"c": 2}}


def test_over_a_reference_builds_on_it() -> None:
    assert put({"a": "${inherit_from:b}"}, "+a.x=1") == {"a": {"_inherit_from": "b", "x": 1}}
    assert put({"a": "${b.c}"}, "+a.x=1") == {"a": {"_copy": "b.c", "x": 1}}


def test_not_into_a_scalar() -> None:
    with pytest.raises(ConfigError, match=r'"\+a.b.c=1": "a.b" is not a mapping'):
        put({"a": {"b": 5}}, "+a.b.c=1")


def test_changing_needs_something_to_change() -> None:
    assert put({"speed": 1}, "speed=2", "limit=3") == {"speed": 2, "limit": 3}
    assert put({}, "limit.x=3") == {"limit": {"x": 3}}
    with pytest.raises(ConfigError, match=r'"limt" is not configured; did you mean "limit"\?; \+limt=… adds a key'):
        put({}, "limt=3")
    with pytest.raises(ConfigError, match=r'"a.spede" is not configured; did you mean "speed"\?'):
        put({"a": {"speed": 1}}, "a.spede=2")


def test_deleting() -> None:
    assert put({"a": {"b": 1, "c": 2}, "d": 3}, "~a.b", "~d") == {"a": {"c": 2}}
    with pytest.raises(ConfigError, match=r'"a.bb" is not configured'):
        put({"a": {"b": 1}}, "~a.bb")
