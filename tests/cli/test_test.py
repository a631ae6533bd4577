"""`rollmill test`, `ng_test` and `ng_test_all` as processes, on folders as they should be and on others."""

import json
import os
import shutil
import sys
import venv
from pathlib import Path

import pytest

import rollmill

DOOR = """
import rollmill as rm


class Door(rm.Environment):
    domain = "games"

    @rm.tool
    def knock(self, times: int = 1) -> str:
        \"\"\"Knock.\"\"\"
        return "come in"

    @rm.reward
    async def entered(self) -> bool:
        return self.trajectory.tool_calls == 1{more}
"""
TESTS = """
import rollmill as rm
from app import Door
from resources_servers.door.app import Door as Same


async def test_one_knock_is_enough():
    rollout = await rm.play(rm.Task.of("Knock."), Door, rm.ToolAgent(), rm.Scripted(rm.call("knock"), "Hello."))
    assert rollout.reward.value == {value}
    assert Same.__name__ == "Door"
"""
CONFIG = """
door:
  resources_servers:
    door: {entrypoint: app.py, domain: games, judge: {type: responses_api_models, name: judge_model}}
"""
ROW = {"responses_create_params": {"input": "Knock."}}


def put(shell, path: str, text: str) -> Path:
    file = shell.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
def door(shell):
    """A folder of one's own that is as it should be; `door(more=…)` makes its reward another one."""

    def make(more: str = "", value: int = 1) -> Path:
        put(shell, "resources_servers/door/app.py", DOOR.format(more=more))
        put(shell, "resources_servers/door/tests/test_app.py", TESTS.format(value=value))
        put(shell, "resources_servers/door/configs/door.yaml", CONFIG)
        rows = "".join(json.dumps({**ROW, "number": number}) + "\n" for number in range(5))
        return put(shell, "resources_servers/door/data/example.jsonl", rows).parents[1]

    return make


@pytest.mark.parametrize("command", ["ng_test +entrypoint=resources_servers/shop", "rollmill test shop"])
def test_an_environment_of_the_package(shell, command):
    done = shell.run(*command.split())
    assert done.returncode == 0, done.stderr
    assert "contract: kept on 5 tasks; what a right answer earns, only its own tests know" in done.stdout
    assert " passed" in done.stdout
    assert done.stdout.rstrip().endswith("resources_servers/shop: passed")


@pytest.mark.slow
def test_a_folder_of_ones_own(shell, door):
    door()
    for command in ("ng_test +entrypoint=resources_servers/door", "rollmill test door"):
        done = shell.run(*command.split())
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout


def test_a_test_that_fails(shell, door):
    door(value=0)
    done = shell.run("ng_test", "+entrypoint=resources_servers/door")
    assert done.returncode == 1
    assert "contract: kept" in done.stdout
    assert "1 failed" in done.stdout
    assert done.stdout.rstrip().endswith("resources_servers/door: failed")


def test_a_contract_that_is_broken(shell, door):
    door(more=" or next(LEAK) % 2 == 0\n\n\nfrom itertools import count\n\nLEAK = count()")
    done = shell.run("ng_test", "+entrypoint=resources_servers/door")
    assert done.returncode == 1
    assert "contract: broken: Door: the same script earned [" in done.stdout


def test_code_that_cannot_be_imported(shell, door):
    door(more="\n\n\nraise RuntimeError('not today')")
    done = shell.run("rollmill", "test", "door")
    assert done.returncode == 1
    assert "contract: broken: " in done.stdout
    assert "RuntimeError: not today" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_configuration_that_is_no_yaml(shell, door):
    (door() / "configs/door.yaml").write_text("door: [")
    done = shell.run("rollmill", "test", "door")
    assert done.returncode == 1
    assert "contract: broken: " in done.stdout
    assert "configs/door.yaml:1: " in done.stdout


def test_a_folder_without_tests(shell, door):
    shutil.rmtree(door() / "tests")
    done = shell.run("ng_test", "+entrypoint=resources_servers/door")
    assert done.returncode == 1
    assert "resources_servers/door: it has no tests of its own" in done.stdout


def test_a_program_is_left_to_its_own_tests(shell):
    put(shell, "resources_servers/foreign/app.py", "import http.server\n\nPORT = 1\n")
    put(shell, "resources_servers/foreign/tests/test_app.py", "import app\n\n\ndef test_port():\n    assert app.PORT\n")
    done = shell.run("ng_test", "+entrypoint=resources_servers/foreign")
    assert done.returncode == 0, done.stdout
    assert "contract: not checked: it is a program" in done.stdout


def test_the_files_of_examples_are_checked_where_that_is_asked(shell, door):
    folder = door()
    wrong = shell.run("rollmill", "test", "door", "--data")
    assert wrong.returncode == 1
    assert "data: data/example_metrics.json is missing" in wrong.stdout
    (folder / "data/example_metrics.json").write_text('{"Number of examples": 5}')
    shutil.copy(folder / "data/example.jsonl", folder / "data/example_rollouts.jsonl")
    right = shell.run("ng_test", "+entrypoint=resources_servers/door", "+should_validate_data=true")
    assert right.returncode == 0, right.stdout


def test_wrong_use(shell, door):
    door()
    for command, said in (
        ("ng_test", "missing: entrypoint"),
        ("ng_test +entrypoint=shop", "entrypoint: expected TYPE/NAME such as resources_servers/shop, got"),
        ("ng_test +entrypoint=resources_servers/../x", "expected TYPE/NAME"),
        ("ng_test +entrypoint=/resources_servers/shop", "expected TYPE/NAME"),
        ("ng_test +entrypoint=servers/shop", "expected TYPE/NAME"),
        ("ng_test +entrypoint=resources_servers/dor", 'no folder resources_servers/dor here; did you mean "door"?'),
        ("ng_test +entrypoint=responses_api_models/openai_model", "no folder responses_api_models/openai_model here"),
        ("ng_test +entrypoint=resources_servers/door +should_validate=true", 'did you mean "should_validate_data"'),
        ("rollmill test", "missing: entrypoint"),
        ("rollmill test shop mcqa", "one environment at a time, or --all"),
        ("rollmill test shop --all", "--all stands alone"),
        ("ng_test_all +num_shards=2 +shard_index=2", "shard_index: 2 shards count from 0 to 1"),
        ("ng_test_all +num_shards=0", "num_shards"),
    ):
        done = shell.run(*command.split())
        assert done.returncode == 2, command
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_without_pytest_it_says_what_to_install(shell, door):
    folder = door()
    venv.create(folder / ".venv", with_pip=False)
    done = shell.run("ng_test", "+entrypoint=resources_servers/door")
    assert done.returncode == 2
    assert "pytest is not installed: " in done.stderr
    assert "door/.venv/bin/python -m pip install pytest pytest-asyncio" in done.stderr


@pytest.mark.slow
def test_all_of_them(shell, door):
    """The package's, and one's own that pass, that fail, that have no tests, and that nobody describes."""
    put(shell, "resources_servers/door/README.md", "# door\n")
    folder = door()
    for name in ("nobody", "undescribed"):
        put(shell, f"environments/{name}/app.py", DOOR.format(more=""))
    put(shell, "environments/nobody/README.md", "# nobody\n")
    put(shell, "responses_api_agents/wrong/app.py", "import rollmill\n")
    put(shell, "responses_api_agents/wrong/README.md", "# wrong\n")
    put(shell, "responses_api_agents/wrong/tests/test_it.py", "def test_it():\n    assert False\n")
    # As a uv or a pip made it, with what the tests need.
    venv.create(folder / ".venv", with_pip=False, system_site_packages=True)
    site = next((folder / ".venv").glob("lib/python*/site-packages"))
    (site / "all.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    (site / "ours.pth").write_text(str(Path(rollmill.__file__).parents[1]) + "\n")

    done = shell.run("ng_test_all", "+delete_venvs_after_each_test=true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (folder / ".venv").exists()
    assert "environments/undescribed has no README.md and was not tested" in done.stdout
    summary = done.stdout[done.stdout.index("folder  ") :]
    results = {line.split()[0]: line.split()[-1] for line in summary.splitlines()[1:] if " s  " in line}
    assert results == {
        "environments/nobody": "missing",
        "resources_servers/arithmetic": "passed",
        "resources_servers/door": "passed",
        "resources_servers/mcqa": "passed",
        "resources_servers/shop": "passed",
        "resources_servers/simple_weather": "passed",
        "responses_api_agents/wrong": "failed",
    }
    assert "failed 1 of 7: responses_api_agents/wrong" in summary
    assert "missing 1 of 7: environments/nobody" in summary

    shutil.rmtree(shell.folder / "responses_api_agents")
    shard = ("+num_shards=6", "+shard_index=0")
    assert shell.run("rollmill", "test", "--all", *shard).returncode == 0
    strict = shell.run("ng_test_all", *shard, "+fail_on_total_and_test_mismatch=true")
    assert strict.returncode == 1
    assert "missing 1 of 1: environments/nobody" in strict.stdout


def test_the_packages_tests_run_where_it_is_installed(shell):
    """Out of a checkout, no pyproject.toml stands above them."""
    shutil.copytree(Path(rollmill.__file__).parent, shell.folder / "site/rollmill")
    shell.env["PYTHONPATH"] = os.pathsep.join((str(shell.folder / "site"), shell.env.get("PYTHONPATH", "")))
    program = "import sys; sys.argv[0] = 'ng_test'; from rollmill.cli.ng import main; main()"
    done = shell.run(sys.executable, "-c", program, "+entrypoint=resources_servers/simple_weather")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in {shell.folder}/site/rollmill/environments/simple_weather" in done.stdout
    assert "warning" not in done.stdout + done.stderr
