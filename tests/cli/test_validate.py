"""`rollmill validate` and `ng_validate` as processes."""

import pytest

SCRIPTED = "responses_api_models/scripted_model/configs/scripted_model.yaml"
ARITHMETIC = f"+config_paths=[resources_servers/arithmetic/configs/arithmetic.yaml,{SCRIPTED}]"
AGENT = "arithmetic_simple_agent.responses_api_agents.simple_agent"


@pytest.mark.parametrize("command", [f"ng_validate {ARITHMETIC}", "rollmill validate shop --model scripted"])
def test_a_valid_configuration(shell, command):
    done = shell.run(*command.split())
    assert (done.returncode, done.stdout) == (0, "✓ Config is valid.\n"), done.stderr


def test_all_instances_are_checked_at_once(shell):
    wrong = (
        "+arithmetic.resources_servers.arithmetic.largest=1000",
        f"+{AGENT}.max_step=3",
        f"~{AGENT}.resources_server",
        "+policy_model.responses_api_models.scripted_model.line=x",
        "+b.responses_api_agents.simpel_agent.max_steps=3",
    )
    done = shell.run("ng_validate", ARITHMETIC, *wrong)
    assert (done.returncode, done.stdout) == (2, "")
    first, *mistakes = done.stderr.splitlines()
    expected = (
        "arithmetic: Expected `int` <= 99",
        f"{AGENT}.max_step: unknown key",
        f"{AGENT}.resources_server: expected",
        "b.responses_api_agents.simpel_agent.model_server: expected",
        "b.responses_api_agents.simpel_agent.resources_server: expected",
        "b.responses_api_agents.simpel_agent: unknown agent 'simpel_agent'; did you mean \"simple_agent\"?",
        "policy_model.responses_api_models.scripted_model.line: unknown key",
    )
    assert first == "rollmill: 7 mistakes:"
    assert all(line.startswith(f"  {said}") for line, said in zip(sorted(mistakes), expected, strict=True)), mistakes


def test_one_mistake_is_one_line(shell):
    for words, said in (
        ((), "there is nothing to check"),
        (("+config_paths=[resources_servers/shop/configs/shop.yaml]",), 'has no instance "policy_model"'),
        ((ARITHMETIC, "+agent_name=arithmetic_agent"), "unknown agent 'arithmetic_agent'"),
        ((ARITHMETIC, "+limit=many"), "limit: expected int or null"),
        ((ARITHMETIC, "+x=${y}"), '"y" is not set'),
    ):
        done = shell.run("ng_validate", *words)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr


def test_the_code_of_ones_own_folders_is_found_and_its_fields_are_tried(shell):
    folder = shell.folder / "responses_api_models/echo"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(
        "import rollmill as rm\n\n\nclass Echo:\n"
        "    def __init__(self, name: str) -> None:\n        self.name = name\n\n"
        "    async def reply(self, conversation):\n        return rm.Reply((rm.assistant('4'),))\n"
    )
    shell.write("good.yaml", "policy_model: {responses_api_models: {echo: {name: e}}}")
    shell.write("bad.yaml", "policy_model: {responses_api_models: {echo: {nam: e}}}")
    environment = "resources_servers/arithmetic/configs/arithmetic.yaml"
    assert shell.run("ng_validate", f"+config_paths=[{environment},good.yaml]").returncode == 0
    refused = shell.run("ng_validate", f"+config_paths=[{environment},bad.yaml]")
    assert refused.returncode == 2
    assert "policy_model.responses_api_models.echo: TypeError: Echo.__init__() got an unexpected" in refused.stderr


def test_a_program_is_valid_where_its_entrypoint_is(shell):
    folder = shell.folder / "resources_servers/foreign"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("import http.server\n")
    shell.write("a.yaml", "foreign: {resources_servers: {foreign: {entrypoint: app.py, domain: other}}}")
    assert shell.run("ng_validate", "+config_paths=[a.yaml]").returncode == 0
    missing = shell.run("ng_validate", "+config_paths=[a.yaml]", "foreign.resources_servers.foreign.entrypoint=b.py")
    assert missing.returncode == 2
    assert "foreign.resources_servers.foreign: " in missing.stderr
    assert "b.py: there is no such entrypoint" in missing.stderr


def test_what_the_code_of_ones_own_says_of_its_fields_is_one_line(shell):
    folder = shell.folder / "resources_servers/door"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(
        "import rollmill as rm\n\n\nclass Door(rm.Environment):\n    @classmethod\n"
        "    def tasks(cls, config, seed):\n        return iter(config['doors'])\n"
    )
    shell.write("a.yaml", "door: {resources_servers: {door: {entrypoint: app.py, domain: other}}}")
    done = shell.run("ng_validate", "+config_paths=[a.yaml]")
    assert done.returncode == 2
    assert done.stderr.startswith("rollmill: door.resources_servers.door: KeyError: 'doors' (app.py:7, in tasks)")
