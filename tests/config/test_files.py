"""Which files are read, from where, and which of them wins."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rollmill.config import find_path
from rollmill.config.files import PACKAGE, find_env, places, read, read_all, read_verbatim
from rollmill.errors import ConfigError

Write = Callable[[str, str], Path]


def merged_names(write: Write, *paths: str) -> list[str]:
    return [path.name for path, _ in read_all(paths, Path.cwd())]


def test_an_included_file_is_lower_than_its_includer(write: Write) -> None:
    write("top.yaml", "config_paths: [middle.yaml]\na: 1")
    write("middle.yaml", "config_paths: [bottom.yaml]\na: 2")
    write("bottom.yaml", "a: 3")
    assert merged_names(write, "top.yaml") == ["bottom.yaml", "middle.yaml", "top.yaml"]


def test_a_later_sibling_and_its_includes_beat_an_earlier_one(write: Write) -> None:
    write("one.yaml", "config_paths: [under_one.yaml]")
    write("two.yaml", "config_paths: [under_two.yaml]")
    write("under_one.yaml", "")
    write("under_two.yaml", "")
    assert merged_names(write, "one.yaml", "two.yaml") == ["under_one.yaml", "one.yaml", "under_two.yaml", "two.yaml"]


def test_a_duplicate_is_merged_once_where_it_was_listed_first(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    write("one.yaml", "config_paths: [shared.yaml]")
    write("two.yaml", "config_paths: [./shared.yaml]")
    write("shared.yaml", "")
    with caplog.at_level(logging.WARNING):
        assert merged_names(write, "one.yaml", "two.yaml") == ["shared.yaml", "one.yaml", "two.yaml"]
    assert "shared.yaml is named more than once" in caplog.text


def test_what_the_user_listed_stays_in_its_place(write: Write) -> None:
    write("one.yaml", "config_paths: [two.yaml]")
    write("two.yaml", "config_paths: [one.yaml]")
    assert merged_names(write, "one.yaml", "two.yaml") == ["one.yaml", "two.yaml"]


def test_includes_may_be_a_list_of_the_file_itself(write: Write) -> None:
    write("top.yaml", "base: [a.yaml]\nconfig_paths: ${base}")
    write("a.yaml", "x: 1")
    assert merged_names(write, "top.yaml") == ["a.yaml", "top.yaml"]


@pytest.mark.parametrize(
    ("asked", "inside"),
    [
        ("resources_servers/shop/configs/shop.yaml", "environments/shop/configs/shop.yaml"),
        ("resources_servers/shop/data/example.jsonl", "environments/shop/data/example.jsonl"),
        ("environments/shop/configs/shop.yaml", "environments/shop/configs/shop.yaml"),
        ("responses_api_models/openai_model/configs/openai_model.yaml", "models/configs/openai_model.yaml"),
        ("responses_api_agents/simple_agent/configs/simple_agent.yaml", "agents/configs/simple_agent.yaml"),
    ],
)
def test_the_working_directory_first_then_the_package(tmp_path: Path, asked: str, inside: str) -> None:
    assert places(asked, tmp_path) == [tmp_path / asked, PACKAGE / inside]


def test_other_paths_are_the_users_own(write: Write, tmp_path: Path) -> None:
    mine = write("configs/mine.yaml", "")
    assert find_path("configs/mine.yaml", working_dir=tmp_path) == mine
    assert find_path(mine, working_dir=Path("elsewhere")) == mine
    assert find_path("configs/other.yaml", working_dir=tmp_path) is None
    assert places("resources_servers", tmp_path) == [tmp_path / "resources_servers"]


def test_the_users_file_hides_the_packages(
    write: Write, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path_factory.mktemp("package")
    monkeypatch.setattr("rollmill.config.files.PACKAGE", package)
    inside = package / "environments/shop/data/example.jsonl"
    inside.parent.mkdir(parents=True)
    inside.touch()
    path = "resources_servers/shop/data/example.jsonl"
    assert find_path(path, working_dir=tmp_path) == inside
    assert find_path(path, working_dir=tmp_path) != write(path, "")
    assert find_path(path, working_dir=tmp_path) == tmp_path / path
    with pytest.raises(ConfigError, match=r"looked at .* and .*; did you mean \"shop\"\?"):
        read_all(["resources_servers/shoop/data/example.jsonl"], tmp_path)


def test_a_missing_file_names_the_places_looked_at(write: Write, tmp_path: Path) -> None:
    write("my_config.yaml", "")
    with pytest.raises(ConfigError) as caught:
        read_all(["my_confg.yaml"], tmp_path)
    message = (
        f'config file "my_confg.yaml" not found; looked at {tmp_path}/my_confg.yaml; did you mean "my_config.yaml"?'
    )
    assert str(caught.value) == message


def test_env_yaml_is_the_nearest_one(write: Write, tmp_path: Path) -> None:
    upper = write("env.yaml", "")
    lower = write("a/b/env.yaml", "")
    assert find_env(tmp_path / "a") == upper
    assert find_env(tmp_path / "a/b") == lower
    assert find_env(tmp_path / "a/b/c") == lower


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n"])
def test_an_empty_file_is_an_empty_mapping(write: Write, text: str) -> None:
    assert read(write("a.yaml", text)) == {}


def test_keys_are_text_and_numbers_may_be_in_scientific_notation(write: Write) -> None:
    assert read(write("a.yaml", "1: {2: x}\nrate: 1e-3\nday: 2026-01-31")) == {
        "1": {"2": "x"},
        "rate": 0.001,
        "day": "2026-01-31",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1\n", "a.yaml:3: "),
        ("a: 1\na: 2\n", "a.yaml:2: found duplicate key a"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2: "),
        ("a:\n\t- b\n", "a.yaml:2: "),
        ("\n- a\n", "a.yaml:2: expected a mapping"),
        ("just text\n", "a.yaml:1: expected a mapping"),
        ("a: !!python/object:x.y {}\n", "a.yaml:1: "),
        ("a:\n  b: ${c\n", "a.yaml: a.b: malformed interpolation"),
        ("config_paths: {a: b}\n", "a.yaml: config_paths: expected a list of paths"),
        ("config_paths: ${nowhere}\n", '"nowhere" is not set'),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(write: Write, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_all(["a.yaml"], tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_text_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match=r"binary.yaml: not text in UTF-8"):
        read(tmp_path / "binary.yaml")
    with pytest.raises(ConfigError, match=r"Is a directory"):
        read(tmp_path)


def test_in_a_verbatim_file_nothing_is_an_interpolation(write: Write) -> None:
    path = write("p.yaml", 'user: "Costs ${x} and $${"\nn: 1')
    assert read_verbatim(path) == {"user": "Costs ${x} and $${", "n": 1}
    assert read_verbatim(write("empty.yaml", "")) == {}
    with pytest.raises(ConfigError, match=r"list\.yaml:1: expected a mapping"):
        read_verbatim(write("list.yaml", "- a"))
