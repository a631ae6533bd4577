"""`rollmill init environment` and `ng_init_resources_server`: what they make works at once."""

import pytest
import yaml

SCRIPTED = "responses_api_models/scripted_model/configs/scripted_model.yaml"


def files(shell, name: str) -> list[str]:
    folder = shell.folder / "resources_servers" / name
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_new_environment_is_played_tested_and_listed_by_its_name(shell):
    made = shell.run("ng_init_resources_server", "+entrypoint=resources_servers/lost_and_found")
    assert made.returncode == 0, made.stderr
    assert files(shell, "lost_and_found") == [
        "README.md",
        "app.py",
        "configs/lost_and_found.yaml",
        "data/example.jsonl",
        "tests/test_app.py",
    ]
    texts = [path.read_text() for path in shell.folder.rglob("*") if path.is_file()]
    assert not any("starter" in text.lower() for text in texts)
    assert "class LostAndFound(rm.Environment[LostAndFoundTask]):" in "".join(texts)

    done = shell.run("rollmill", "collect", "lost_and_found", "--model", "scripted:a key", "--out", "a.jsonl")
    assert done.returncode == 0, done.stderr
    assert [row["reward"] for row in shell.rows("a.jsonl")] == [0] * 5
    assert shell.rows("a.jsonl")[0]["responses_create_params"]["tools"][0]["name"] == "open_box"

    tested = shell.run("ng_test", "+entrypoint=resources_servers/lost_and_found")
    assert tested.returncode == 0, tested.stdout
    assert "contract: kept on 5 tasks" in tested.stdout
    assert "3 passed" in tested.stdout

    paths = f"+config_paths=[resources_servers/lost_and_found/configs/lost_and_found.yaml,{SCRIPTED}]"
    words = ("+agent_name=lost_and_found_simple_agent", "+output_jsonl_fpath=b.jsonl", "+num_repeats=2")
    assert shell.run("ng_validate", paths).stdout == "✓ Config is valid.\n"
    done = shell.run("ng_collect_rollouts", paths, *words)
    assert done.returncode == 0, done.stderr
    assert len(shell.rows("b.jsonl")) == 10
    assert "lost_and_found" in shell.run("rollmill", "list", "environments", "--domain", "agent").stdout


def test_the_modern_spelling_makes_the_same(shell):
    assert shell.run("rollmill", "init", "environment", "door").returncode == 0
    assert files(shell, "door") == [
        "README.md",
        "app.py",
        "configs/door.yaml",
        "data/example.jsonl",
        "tests/test_app.py",
    ]
    config = yaml.safe_load((shell.folder / "resources_servers/door/configs/door.yaml").read_text())
    assert config["door"]["resources_servers"]["door"] == {"entrypoint": "app.py", "domain": "agent"}


def test_a_name_that_holds_the_name_of_what_is_copied(shell):
    assert shell.run("rollmill", "init", "environment", "myStarter").returncode == 0
    text = (shell.folder / "resources_servers/myStarter/app.py").read_text()
    assert "class MyStarter(rm.Environment[MyStarterTask]):" in text
    assert shell.run("rollmill", "test", "myStarter").returncode == 0


@pytest.mark.parametrize("name", ["1door", "my-door", "döör", "class", "../door", "_door", "", "limit", "help", "json"])
def test_a_name_that_cannot_be_one_is_refused(shell, name):
    done = shell.run("rollmill", "init", "environment", name)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not list(shell.folder.iterdir())


def test_wrong_use(shell):
    folder = shell.folder / "resources_servers/door"
    folder.mkdir(parents=True)
    for words, said in (
        (("ng_init_resources_server",), "missing: entrypoint"),
        (("ng_init_resources_server", "+entrypoint=door"), "entrypoint: expected resources_servers/NAME, got"),
        (("ng_init_resources_server", "+entrypoint=environments/door"), "expected resources_servers/NAME"),
        (("ng_init_resources_server", "+entrypoint=resources_servers/door"), "door is there already"),
        (("rollmill", "init", "environment", "door"), "resources_servers/door is there already"),
        (("rollmill", "init", "agent", "door"), "invalid choice: 'agent'"),
    ):
        done = shell.run(*words)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert not list(folder.iterdir())
    folder.rmdir()
    folder.parent.rmdir()
    folder.parent.touch()
    done = shell.run("rollmill", "init", "environment", "door")
    assert done.returncode == 2
    assert "resources_servers/door cannot be made: " in done.stderr
