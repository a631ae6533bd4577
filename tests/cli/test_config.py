"""`rollmill config` and `ng_dump_config` as processes."""

import yaml

OPENAI = "responses_api_models/openai_model/configs/openai_model.yaml"
CONFIGS = f"[resources_servers/mcqa/configs/mcqa.yaml,{OPENAI}]"
POLICY = ("+policy_base_url=http://127.0.0.1:9/v1", "+policy_api_key=canary-key-123", "+policy_model_name=served")


def test_the_resolved_configuration_has_no_secrets_and_loads_again(shell):
    extra = ("+limit=10", "+note=uses canary-key-123", r"+prompt=say \${name}", "+number='1e3'")
    done = shell.run("ng_dump_config", f"+config_paths={CONFIGS}", *POLICY, *extra)
    assert done.returncode == 0, done.stderr
    assert "canary-key-123" not in done.stdout + done.stderr
    tree = yaml.safe_load(done.stdout)
    model = tree["policy_model"]["responses_api_models"]["openai_model"]
    assert (model["openai_base_url"], model["openai_api_key"]) == ("http://127.0.0.1:9/v1", "***")
    assert (tree["limit"], tree["note"], tree["number"]) == (10, "uses ***", "1e3")
    assert "config_paths" not in tree
    shell.write("dumped.yaml", done.stdout)
    again = shell.run("ng_dump_config", "+config_paths=[dumped.yaml]")
    assert yaml.safe_load(again.stdout) == tree, again.stderr


def test_it_says_which_files_it_comes_from_lowest_first(shell):
    shell.write("env.yaml", "size: 3")
    shell.write("a.yaml", "largest: ${size}")
    done = shell.run("ng_dump_config", "+config_paths=[a.yaml]")
    paths = [line.removeprefix("# from ") for line in done.stdout.splitlines() if line.startswith("#")]
    assert paths == [str(shell.folder / "a.yaml"), str(shell.folder / "env.yaml")]
    assert yaml.safe_load(done.stdout) == {"largest": 3, "size": 3}


def test_it_takes_the_words_of_a_collection(shell):
    shell.env["OPENAI_API_KEY"] = "canary-key-123"
    words = ("shop", "--model", "openai:served", "--limit", "4", "--out", "a.jsonl", "num_repeats=2")
    done = shell.run("rollmill", "config", *words)
    assert done.returncode == 0, done.stderr
    assert "canary-key-123" not in done.stdout
    tree = yaml.safe_load(done.stdout)
    assert (tree["agent_name"], tree["num_repeats"]) == ("shop_simple_agent", 2)
    assert tree["policy_model"]["responses_api_models"]["openai_model"]["openai_model"] == "served"
    assert tree["shop_simple_agent"]["responses_api_agents"]["simple_agent"]["model_server"]["name"] == "policy_model"


def test_what_cannot_be_resolved_is_one_line(shell):
    for words, said in (
        ((f"+config_paths={CONFIGS}",), "these variables are not set"),
        (("+config_paths=[none.yaml]",), 'config file "none.yaml" not found'),
        (("limt=3",), '"limt" is not configured; did you mean "limit"?'),
    ):
        done = shell.run("ng_dump_config", *words)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
