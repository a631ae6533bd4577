"""Prompts from templates."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.rows import write

from rollmill.data.prompts import load_prompt
from rollmill.errors import ConfigError


@pytest.fixture
def prompt(tmp_path):
    def make(*lines: str):
        return load_prompt(write(tmp_path / "p.yaml", *lines))

    return make


def test_fields_are_filled_in_and_braces_stay(prompt):
    made = prompt("system: 'Be {tone}.'", "user: |-", "  {question}", "  End with \\boxed{{{kind}}}, for ${x}$.")
    row = {"tone": "brief", "question": "What is {a}?", "kind": 1, "x": [1, None], "responses_create_params": {"n": 2}}
    found = json.loads(made.render(json.dumps(row).encode(), "here"))
    assert found.pop("responses_create_params") == {
        "n": 2,
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is {a}?\nEnd with \\boxed{1}, for $[1, None]$."},
        ],
    }
    assert found == {name: value for name, value in row.items() if name != "responses_create_params"}


@given(st.dictionaries(st.text("ab _", min_size=1), st.text() | st.integers() | st.booleans() | st.none(), min_size=1))
def test_a_template_says_what_pythons_format_says(tmp_path_factory, row):
    folder = tmp_path_factory.mktemp("p")
    template = "{{ " + " | ".join(f"{{{name}}}" for name in row) + " }}"
    made = load_prompt(write(folder / "p.yaml", json.dumps({"user": template})))
    found = json.loads(made.render(json.dumps(row).encode(), "here"))
    assert found["responses_create_params"]["input"] == [{"role": "user", "content": template.format_map(row)}]


def test_a_field_that_is_missing_is_named(prompt):
    made = prompt("user: '{qestion}'")
    with pytest.raises(ConfigError) as raised:
        made.render(b'{"question": "x"}', "a.jsonl, line 3")
    said = 'p.yaml, user asks for the field "qestion", which the row does not have; did you mean "question"?'
    assert str(raised.value).startswith("a.jsonl, line 3: ")
    assert str(raised.value).endswith(said)


@pytest.mark.parametrize("reached", ["{row.__class__}", "{row[0]}", "{row!r}", "{row:>9}"])
def test_nothing_is_reached_through_a_field(prompt, reached):
    made = prompt(f"user: '{reached}'")
    with pytest.raises(ConfigError, match="which the row does not have"):
        made.render(b'{"row": "x"}', "here")


def test_a_row_that_has_a_prompt_is_refused(prompt):
    made = prompt("user: x")
    assert b'"input":[{' in made.render(b'{"responses_create_params": {"input": []}}', "here")
    with pytest.raises(ConfigError, match="here: it has responses_create_params"):
        made.render(b'{"responses_create_params": {"input": "y"}}', "here")


def test_the_other_fields_keep_their_bytes(prompt):
    assert b'"n":1.50,' in prompt("user: '{n}'").render(b'{"n":1.50,"m":[1, 2]}', "here")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("system: x",), "p.yaml: it has no `user`"),
        (("user: [x]",), "p.yaml.user: expected str, got"),
        (("user: x", "sytem: y"), 'p.yaml.sytem: unknown key; did you mean "system"?'),
        (("user: 'a } b'",), "p.yaml, user: a single } in 'a } b'"),
        (("user: 'a { b'",), "p.yaml, user: a single {"),
        (("user: '{}'",), "p.yaml, user: a single {"),
        (("user: 'x",), "p.yaml:"),
        (("- x",), "p.yaml:1: expected a mapping"),
    ],
)
def test_what_is_no_template_is_refused_with_its_file(prompt, lines, said):
    with pytest.raises(ConfigError) as raised:
        prompt(*lines)
    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
