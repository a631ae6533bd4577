"""`rollmill help` and `ng_help`: no command is left out, in any terminal."""

import re
import tomllib
from pathlib import Path

import pytest

from rollmill.cli import main, ng

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]


def test_every_command_is_there_in_both_spellings(shell):
    said = shell.run("ng_help").stdout
    assert said == shell.run("rollmill", "help").stdout
    firsts = [line.split()[0] for line in said.splitlines()[1:] if line and not line.startswith(" ")]
    assert firsts[: len(main.COMMANDS)] == list(main.COMMANDS)
    assert all(f"ng_{name}" in said for name in ng.COMMANDS)
    assert re.search("^collect +ng_collect_rollouts +play tasks", said, re.MULTILINE)


@pytest.mark.parametrize("width", [80, 60, 40, 24])
def test_it_fits(shell, width):
    shell.env["COLUMNS"] = str(width)
    done = shell.run("rollmill", "help")
    assert max(map(len, done.stdout.splitlines())) <= width
    assert all(word in done.stdout for word in main.COMMANDS)


@pytest.mark.parametrize("name", ng.COMMANDS)
def test_every_command_of_nemo_gym_has_its_scripts_and_its_help(name):
    assert {f"ng_{name}", f"nemo_gym_{name}"} < SCRIPTS.keys()
    assert ng.help_text(f"ng_{name}", ng.find(name)).startswith(f"ng_{name} +key=value")


def test_an_unknown_command_is_named(shell):
    done = shell.run("rollmill", "colect")
    assert done.returncode == 2
    assert "colect" in done.stderr
    assert "collect" in done.stderr
