"""`rollmill list` as a process: this package's, and what lies beside the working directory."""

import json

import pytest

from rollmill import plugins

DOOR = """
import rollmill as rm


class Door(rm.Environment):
    domain = "games"
    verification = "replay"

    @rm.tool
    def knock(self) -> str:
        \"\"\"Knock.\"\"\"
        return "come in"

    @rm.reward
    def entered(self) -> bool:
        return True
"""
JUDGES_NOTHING = "import rollmill as rm\n\n\nclass Idle(rm.Environment):\n    pass\n"
AGENT = '"""Plays one turn: no more."""\nimport rollmill as rm\n\n\nclass Short(rm.ToolAgent):\n    pass\n'


def put(shell, path: str, text: str) -> None:
    file = shell.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def listed(shell, *words: str) -> dict[str, dict]:
    done = shell.run("rollmill", "list", *words, "--json")
    assert done.returncode == 0, done.stderr
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def crowd(shell):
    """Folders of one's own of every kind."""
    put(shell, "resources_servers/door/app.py", DOOR)
    put(shell, "resources_servers/door/data/example.jsonl", '{"responses_create_params": {"input": "Knock."}}\n')
    put(shell, "environments/idle/app.py", JUDGES_NOTHING)
    put(shell, "resources_servers/broken/app.py", "import rollmill\nimport no_such_module\n")
    put(shell, "resources_servers/foreign/server.js", "require('http')\n")
    program = "foreign: {resources_servers: {foreign: {entrypoint: server.js, domain: coding}}}\n"
    put(shell, "resources_servers/foreign/configs/foreign.yaml", program)
    put(shell, "resources_servers/notes/README.md", "nothing to play\n")
    put(shell, "responses_api_agents/short/app.py", AGENT)
    return shell


def test_the_packages_own(shell):
    found = listed(shell)
    assert {one["kind"] for one in found.values()} == {"environment", "agent", "model"}
    assert {*plugins.environments(), *plugins.agents(), *plugins.models()} == found.keys()
    assert not any(one["own"] or one["program"] or one["fault"] for one in found.values())
    shop, arithmetic = found["shop"], found["arithmetic"]
    assert (shop["trains"], shop["tools"], shop["stateful"]) == ("agent", ["take", "put_back"], True)
    assert (shop["verification"], shop["rewards"], shop["examples"]) == ("replay", ["right_cart", "no_waste"], 5)
    assert (arithmetic["stateful"], arithmetic["makes_tasks"]) == (False, True)
    assert found["mcqa"]["rewards"] == ["verify"]
    assert found["simple_agent"]["fields"][0] == "max_steps"
    assert found["scripted_model"]["fields"] == ["lines", "model"]


def test_ones_own_folders_and_programs_are_among_them(crowd):
    found = listed(crowd)
    assert "notes" not in found
    assert found["door"]["own"]
    assert (found["door"]["trains"], found["door"]["tools"], found["door"]["examples"]) == ("games", ["knock"], 1)
    foreign = found["foreign"]
    assert (foreign["program"], foreign["trains"], foreign["tools"]) == (True, "coding", None)
    assert "No module named 'no_such_module'" in found["broken"]["fault"]
    assert found["idle"]["rewards"] == []
    short = found["short"]
    assert (short["kind"], short["own"], short["about"]) == ("agent", True, "Plays one turn: no more.")


def test_a_line_each(crowd):
    said = crowd.run("rollmill", "list", "environments").stdout
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
    assert lines["door"] == ["games", "yes", "1", "replay", "1"]
    assert lines["foreign"] == ["coding", "?", "?", "program", "0"]
    assert lines["arithmetic"] == ["math", "no", "0", "stateless", "5,", "makes", "more"]
    assert "broken cannot be used: " in said


@pytest.mark.parametrize("width", [80, 50, 25])
def test_it_fits(crowd, width):
    crowd.env["COLUMNS"] = str(width)
    done = crowd.run("rollmill", "list")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= width


def test_by_what_it_trains_and_for_what(crowd):
    assert listed(crowd, "environments", "--domain", "games").keys() == {"door"}
    suiting = listed(crowd, "--for", "grpo")
    assert suiting.keys() == {*plugins.environments(), "door", "foreign"}, "who judges nothing and who is broken is not"
    said = crowd.run("rollmill", "list", "--for", "dpo", "--domain", "games").stdout.splitlines()
    assert said[1].startswith("door")
    assert said[-1].startswith("dpo learns from a better and a worse rollout of one task")
    assert "no environments like that here" in crowd.run("rollmill", "list", "--domain", "rlhf").stdout


def test_what_cannot_be_listed_is_said(shell):
    for words, said in (
        (("servers",), "invalid choice: 'servers'"),
        (("models", "--for", "grpo"), "--domain and --for choose environments, not models"),
        (("--domain", "maths"), "invalid choice: 'maths'"),
    ):
        done = shell.run("rollmill", "list", *words)
        assert done.returncode == 2
        assert said in done.stderr
