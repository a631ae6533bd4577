"""From a command line to one typed configuration."""

import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct

from rollmill.config import load, masked, masked_text, options_from
from rollmill.errors import ConfigError
from rollmill.model import Secret

Write = Callable[[str, str], Path]


class Upload(Struct):
    to: Literal["hub", "folder"] = "folder"
    hf_token: Secret | None = None
    tags: list[str] = []


class Order(enum.Enum):
    SORTED = "sorted"
    GIVEN = "given"


class Collect(Struct, kw_only=True):
    agent_name: str | None = None
    input_jsonl_fpath: str
    output_jsonl_fpath: str
    limit: int | None = None
    num_repeats: int | dict[str, int] = 1
    num_samples_in_parallel: int | None = None
    responses_create_params: dict[str, Any] = {}
    resume_from_cache: bool = True
    upload: Upload | None = None
    order: Order = Order.GIVEN


class Anything(Struct):
    limit: int | None = None


FILES = ("+input_jsonl_fpath=in.jsonl", "+output_jsonl_fpath=out.jsonl")


def test_a_command_of_the_seeds(write: Write) -> None:
    config = load(
        [
            "+agent_name=my_agent",
            "+input_jsonl_fpath=tasks.jsonl",
            "+output_jsonl_fpath=rollouts.jsonl",
            "+limit=10",
            "+num_repeats=3",
            "+num_samples_in_parallel=20",
            "+responses_create_params.temperature=0.6",
            "+responses_create_params.max_output_tokens=512",
        ],
        options=Collect,
    )
    assert config.options == Collect(
        agent_name="my_agent",
        input_jsonl_fpath="tasks.jsonl",
        output_jsonl_fpath="rollouts.jsonl",
        limit=10,
        num_repeats=3,
        num_samples_in_parallel=20,
        responses_create_params={"temperature": 0.6, "max_output_tokens": 512},
    )
    assert config.warnings == ()
    assert config.sources == ()


def test_files_then_env_then_initial_then_command_line(write: Write) -> None:
    write("a.yaml", "v: {file: file, env: file, initial: file, word: file}")
    env = write("env.yaml", "v: {env: env, initial: env, word: env}")
    config = load(
        ["+config_paths=[a.yaml]", "+v.word=word"],
        options=Anything,
        initial={"v": {"initial": "initial", "word": "initial"}},
    )
    assert config.variables["v"] == {"file": "file", "env": "env", "initial": "initial", "word": "word"}
    assert config.sources == (env.parent / "a.yaml", env)


def test_paths_from_a_list_in_env_yaml(write: Write) -> None:
    write("env.yaml", "my_list: [a.yaml, b.yaml]")
    write("a.yaml", "x: a\ny: a")
    write("b.yaml", "x: b")
    config = load(["+config_paths=${my_list}"], options=Anything)
    assert (config.variables["x"], config.variables["y"]) == ("b", "a")
    assert config.tree["config_paths"] == ["a.yaml", "b.yaml"]
    added = load(["+my_list=[a.yaml]", "+config_paths=${my_list}"], options=Anything)
    assert added.variables["x"] == "a"


@pytest.mark.parametrize("paths", ["config_paths: [a.yaml]", "config_paths: a.yaml"])
def test_paths_in_env_yaml_itself(write: Write, paths: str) -> None:
    write("env.yaml", paths)
    write("a.yaml", "x: 1")
    assert load([], options=Anything).variables == {"x": 1}
    write("b.yaml", "y: 2")
    assert load(["config_paths=[b.yaml]"], options=Anything).variables == {"y": 2}


def test_a_working_directory_other_than_the_process_has(write: Write, tmp_path: Path) -> None:
    write("below/a.yaml", "x: 1")
    write("below/env.yaml", "y: 2")
    config = load(["+config_paths=[a.yaml]"], options=Anything, working_dir=Path("below"))
    assert config.variables == {"x": 1, "y": 2}


def test_interpolation(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "sk-123456")
    write("env.yaml", "policy_base_url: http://host/v1\npolicy_api_key: ${oc.env:THE_KEY}\nworkers: ${oc.env:NONE,4}")
    write(
        "a.yaml", "model: {url: '${policy_base_url}/chat', key: '${policy_api_key}', again: '${.url}', raw: '\\${x}'}"
    )
    config = load(["+config_paths=[a.yaml]", "+limit=${workers}"], options=Anything)
    assert config.variables["model"] == {
        "url": "http://host/v1/chat",
        "key": "sk-123456",
        "again": "http://host/v1/chat",
        "raw": "${x}",
    }
    assert config.variables["policy_base_url"] == "http://host/v1"
    assert config.options.limit == 4
    assert "sk-123456" not in str(masked(config))
    assert masked_text("+key=sk-123456 +x=1", config) == "+key=*** +x=1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "m: {url: '${policy_base_url}'}",
            'm.url: "policy_base_url" is not set; set it in env.yaml or pass +policy_base_url=…',
        ),
        ("m: [{u: '${hots}/v1'}]\nhost: x", 'm[0].u: "hots" is not set; did you mean "host"?; set it in'),
        ("k: ${oc.env:NOT_EXPORTED}", "k: environment variable NOT_EXPORTED is not set; export it or write ${oc.env:"),
        ("k: ${nothing:1}", "k: unsupported interpolation type nothing"),
        ("a: ${b}\nb: ${a}", ": interpolations refer to each other in a circle"),
        ("x: {y: '${q}'}\nq: {r: '${x}'}", "interpolations refer to each other in a circle"),
        ("a: ${b.c}\nb: 1", "node `b` is not a container"),
    ],
)
def test_an_interpolation_that_leads_nowhere(write: Write, text: str, message: str) -> None:
    write("a.yaml", text)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(["+config_paths=[a.yaml]"], options=Anything)
    assert "\n" not in str(caught.value)


def test_all_missing_values_at_once(write: Write) -> None:
    write("a.yaml", "a: {b: '???', c: 1}\nl: [x, '???']\nurl: ${policy_base_url}\npolicy_base_url: ???")
    with pytest.raises(ConfigError) as caught:
        load(["+config_paths=[a.yaml]"], options=Anything)
    assert str(caught.value).splitlines()[1:] == ["  a.b", "  l[1]", "  policy_base_url"]
    config = load(["+config_paths=[a.yaml]", "+a.b=1", "+l.1=y", "policy_base_url=z"], options=Anything)
    assert config.tree["l"] == ["x", "y"]
    assert config.variables["url"] == "z"


def test_a_missing_value_does_not_hide_a_given_one(write: Write) -> None:
    write("low.yaml", "a: 1")
    write("high.yaml", "a: ???\nconfig_paths: [low.yaml]")
    assert load(["+config_paths=[high.yaml]"], options=Anything).variables == {"a": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (FILES[:1], "missing: output_jsonl_fpath; for example +output_jsonl_fpath=…"),
        ((), "missing: input_jsonl_fpath, output_jsonl_fpath"),
        ((*FILES, "+limit=abc"), 'limit: expected int or null, got "abc"'),
        ((*FILES, "+limit=1.5"), "limit: expected int or null, got 1.5"),
        ((*FILES, "+agent_name=7"), "agent_name: expected str or null, got 7; quote it"),
        ((*FILES, "+num_repeats={a: x}"), "num_repeats: expected int"),
        ((*FILES, "+responses_create_params=hot"), 'responses_create_params: expected object, got "hot"'),
        ((*FILES, "+upload.too=hub"), 'upload.too: unknown key; did you mean "to"?'),
        ((*FILES, "+upload.to=hubb"), 'upload.to: "hubb" is not one of folder, hub; did you mean "hub"?'),
        ((*FILES, "+upload.tags=[a,1]"), "upload.tags[1]: expected str, got 1; quote it"),
        ((*FILES, "+order=sort"), 'order: "sort" is not one of sorted, given; did you mean "sorted"?'),
        ((*FILES, "+upload.hf_token=[sk-123456]"), "upload.hf_token: "),
    ],
)
def test_a_wrong_option_is_named(write: Write, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(words, options=Collect)
    assert "\n" not in str(caught.value)
    assert "sk-123456" not in str(caught.value)


def test_options_from_text_and_of_several_types(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMIT", "12")
    words = ["+limit=${oc.env:LIMIT}", "+num_repeats={my_agent: 4, _default: 1}", "+resume_from_cache='false'"]
    options = load([*FILES, *words, "+upload={to: hub, hf_token: hf_123456}", "order=sorted"], options=Collect).options
    assert (options.limit, options.resume_from_cache, options.order) == (12, False, Order.SORTED)
    assert options.num_repeats == {"my_agent": 4, "_default": 1}
    assert options.upload == Upload(to="hub", hf_token=Secret("hf_123456"))
    assert "hf_123456" not in repr(options)


def test_nulls(write: Write) -> None:
    assert load([*FILES, "+limit=null"], options=Collect).options.limit is None


def test_a_near_miss_of_an_option_is_a_warning(write: Write) -> None:
    config = load([*FILES, "+num_samples_in_paralel=5", "+verbos=true", "+my_variable=1"], options=Collect)
    assert config.warnings == (
        'nothing reads "num_samples_in_paralel"; did you mean "num_samples_in_parallel"?',
        'nothing reads "verbos"; did you mean "verbose"?',
    )
    assert config.variables["num_samples_in_paralel"] == 5


def test_a_variable_that_is_used_is_no_near_miss(write: Write) -> None:
    assert load([*FILES, "+limits=5", "+limit=${limits}"], options=Collect).warnings == ()


def test_keys_of_other_commands_are_left_alone(write: Write) -> None:
    write("env.yaml", "head_server: {port: 11000}\ndry_run: true\nhf_token: hf_123456\nport_range_low: 10001")
    config = load(["port_range_high=20000", "+help=true"], options=Anything)
    assert config.warnings == ()
    assert config.variables == {"hf_token": "hf_123456"}
    assert config.tree["head_server"] == {"port": 11000}
    assert config.tree["port_range_high"] == 20000


def test_changing_what_nobody_has(write: Write) -> None:
    with pytest.raises(ConfigError, match=r'"num_repeat" is not configured; did you mean "num_repeats"\?'):
        load([*FILES, "num_repeat=3"], options=Collect)
    write("a.yaml", "speed: 1")
    assert load(["+config_paths=[a.yaml]", "speed=2"], options=Anything).variables == {"speed": 2}
    assert load(["+config_paths=[a.yaml]", "~speed"], options=Anything).variables == {}


def test_an_override_over_a_reference(write: Write) -> None:
    write("a.yaml", "base: {x: 1, y: 2}\nmine: ${inherit_from:base}\nother: {_copy: mine}")
    config = load(["+config_paths=[a.yaml]", "+mine.x=9", "mine.y=8"], options=Anything)
    assert config.variables == {"mine": {"x": 9, "y": 8}, "other": {"x": 9, "y": 8}}
    added = load(["+config_paths=[a.yaml]", "+more=${copy:base}", "+more.x=3"], options=Anything)
    assert added.variables["more"] == {"x": 3, "y": 2}


def test_importing_and_loading_changes_nothing_global(write: Write) -> None:
    from omegaconf import OmegaConf

    load([], options=Anything)
    assert not OmegaConf.has_resolver("inherit_from")
    assert not OmegaConf.has_resolver("copy")


def test_options_of_a_command_that_reads_no_configuration(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("env.yaml", "limit: 7\nconfig_paths: [none.yaml]")
    monkeypatch.setenv("MANY", "3")
    assert options_from(["+limit=${oc.env:MANY}", "verbose=true", "+config_paths=[a.yaml]"], Anything).limit == 3
    for word in ("+limt=3", "limt=3"):
        with pytest.raises(ConfigError, match='did you mean "limit"'):
            options_from([word], Anything)


def test_words_lie_over_what_flags_have_said() -> None:
    assert options_from(["+limit=3"], Anything, {"limit": 2}).limit == 3
    assert options_from([], Anything, {"limit": 2}).limit == 2
    with pytest.raises(ConfigError, match="limt: unknown key"):
        options_from([], Anything, {"limt": 2})
