"""From names to code: this package's own, and the folders of people beside their working directory."""

import re
from pathlib import Path

import pytest

import rollmill as rm
from rollmill import plugins
from rollmill.config import convert
from rollmill.environments.mcqa import MCQA
from rollmill.errors import ConfigError

SHOP = """
import rollmill as rm

class Corner(rm.Environment):
    def verify(self, task, response):
        return 1
"""
AGENT = """
import rollmill as rm

class Short(rm.ToolAgent):
    def __init__(self, **fields):
        super().__init__(max_turns=1)
"""
ECHO = """
import rollmill as rm

class Echo:
    def __init__(self, name: str, times: int = 1) -> None:
        self.name, self.times = name, times

    async def reply(self, conversation):
        return rm.Reply((rm.assistant(conversation.items[-1].text * self.times),))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(folder: Path, path: str, text: str) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("kind", ["resources_servers", "environments"])
def test_an_environment_of_ones_own_folder(folder: Path, kind: str):
    put(folder, f"{kind}/corner/app.py", SHOP)
    assert plugins.environment("corner").__name__ == "Corner"


def test_the_entrypoint_may_have_another_name(folder: Path):
    put(folder, "resources_servers/corner/world.py", SHOP)
    assert plugins.environment("corner", "world.py").__name__ == "Corner"
    with pytest.raises(ConfigError, match=r"corner/app.py: there is no such entrypoint"):
        plugins.environment("corner")


def test_ones_own_folder_hides_the_packages_one(folder: Path):
    put(folder, "resources_servers/mcqa/data/mine.jsonl", "")
    assert plugins.environment("mcqa", "app.py") is MCQA
    put(folder, "resources_servers/mcqa/app.py", SHOP)
    assert plugins.environment("mcqa", "app.py").__name__ == "Corner"


def test_ones_own_folders_by_their_names(folder: Path):
    assert plugins.own_folders("resources_servers") == {}
    for path in ("resources_servers/corner", "environments/corner", "environments/other", "resources_servers/.venv"):
        put(folder, f"{path}/app.py", SHOP)
    put(folder, "resources_servers/README.md", "")
    assert {name: str(place) for name, place in plugins.own_folders("resources_servers").items()} == {
        "corner": "resources_servers/corner",
        "other": "environments/other",
    }
    assert plugins.own_folders("responses_api_agents") == {}


def test_a_model_is_a_class_with_reply_or_make_and_fields(folder: Path):
    put(folder, "responses_api_models/echo/app.py", ECHO)
    module = plugins.model("echo")
    model = module.make(convert({"name": "e", "times": 2}, module.Fields, "echo"))
    assert (model.name, model.times) == ("e", 2)
    put(folder, "responses_api_models/two/app.py", ECHO + "\nclass Other(Echo):\n    pass\n")
    with pytest.raises(ConfigError, match=r"two/app.py has 2 classes with reply\(\)"):
        plugins.model("two")
    put(folder, "responses_api_models/half/app.py", "import rollmill\n\ndef make(fields):\n    return None\n")
    with pytest.raises(ConfigError, match="no `Fields`"):
        plugins.model("half")


def test_an_agent_of_ones_own_folder(folder: Path):
    put(folder, "responses_api_agents/short/app.py", AGENT)
    made = plugins.agent("short").make({})
    assert isinstance(made, rm.ToolAgent)
    assert made.max_turns == 1


def test_what_never_imports_this_package_is_a_program(folder: Path):
    assert plugins.is_program(put(folder, "a/server.js", "require('http')"))
    assert plugins.is_program(put(folder, "b/app.py", "import http.server\n# like rollmill\n"))
    assert not plugins.is_program(put(folder, "c/app.py", SHOP))
    put(folder, "resources_servers/foreign/app.py", "import http.server\n")
    with pytest.raises(ConfigError, match="a program of its own"):
        plugins.environment("foreign")


def test_what_fails_to_import_is_named_with_the_way_to_it(folder: Path):
    put(folder, "resources_servers/broken/app.py", "import rollmill as rm\n\ndef go():\n    return missing\n\ngo()\n")
    with pytest.raises(ConfigError) as caught:
        plugins.environment("broken")
    first, *way = str(caught.value).splitlines()
    assert re.fullmatch(r".*broken/app.py could not be imported: NameError: .* \(app.py:4, in go\)", first)
    assert [re.sub(r".*/", "", line) for line in way] == ["app.py:6: go()", "app.py:4: return missing"]
