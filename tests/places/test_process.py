"""The same commands with everything in one process, on services that run, and in a process for each instance."""

import json
import re

import pytest

pytestmark = pytest.mark.slow

CONFIGURATION = """\
policy_model:
  responses_api_models:
    scripted_model:
      {isolation}
      lines:
      - {{type: function_call, name: take, arguments: {{item: apple, count: 2}}}}
      - {{type: function_call, name: take, arguments: {{item: moon}}}}
      - Here are your apples.
config_paths: [resources_servers/shop/configs/shop.yaml]
shop:
  resources_servers:
    shop:
      {isolation}
shop_simple_agent:
  responses_api_agents:
    simple_agent:
      {isolation}
"""
EXAMPLES = "resources_servers/shop/data/example.jsonl"


def rows(shell, name: str) -> list[str]:
    """The rows of an output in the order of their slots, without what tells when and where they were played."""
    found = []
    for row in sorted(shell.rows(name), key=lambda row: (row["_ng_task_index"], row["_ng_rollout_index"])):
        row["rollmill"].pop("seconds")
        row["rollmill"].pop("run")
        row["response"].pop("created_at", None)
        found.append(re.sub(r"(resp|msg|fc)_[0-9a-f]{8,}", r"\1_id", json.dumps(row)))
    return found


def collected(shell, out: str, *words: str) -> None:
    given = (f"+input_jsonl_fpath={EXAMPLES}", f"+output_jsonl_fpath={out}", "+num_repeats=2")
    done = shell.run("ng_collect_rollouts", *given, "+agent_name=shop_simple_agent", *words)
    assert done.returncode == 0, done.stderr


def test_one_rollout_wherever_its_parts_live(shell, serving):
    configuration = shell.folder / "shop.yaml"
    configuration.write_text(CONFIGURATION.format(isolation="description: here"))
    collected(shell, "here.jsonl", "+config_paths=[shop.yaml]")
    with serving("+config_paths=[shop.yaml]") as services:
        collected(shell, "served.jsonl", services.head)
        assert len({service["pid"] for service in services.instances()}) == 1
    configuration.write_text(CONFIGURATION.format(isolation="isolation: process"))
    collected(shell, "apart.jsonl", "+config_paths=[shop.yaml]")
    with serving("+config_paths=[shop.yaml]") as services:
        collected(shell, "served_apart.jsonl", services.head)
        assert len({service["pid"] for service in services.instances()}) == 3
    with serving("+config_paths=[shop.yaml]", "+num_workers=2") as services:
        collected(shell, "served_by_two.jsonl", services.head)
    here = rows(shell, "here.jsonl")
    assert len(here) == 10
    assert any('"reward": 1.0' in row for row in here)
    for other in ("served.jsonl", "apart.jsonl", "served_apart.jsonl", "served_by_two.jsonl"):
        assert rows(shell, other) == here, other


def test_an_environment_that_somebody_else_serves(shell, serving):
    (shell.folder / "shop.yaml").write_text(CONFIGURATION.format(isolation="description: here"))
    collected(shell, "here.jsonl", "+config_paths=[shop.yaml]")
    with serving("+config_paths=[shop.yaml]") as services:
        (shell.folder / "there.yaml").write_text(
            "config_paths: [shop.yaml]\n"
            f"shop: {{resources_servers: {{_delete_key: shop, anybodys: {{url: '{services.url('shop')}'}}}}}}\n"
        )
        given = ("+input_jsonl_fpath=" + EXAMPLES, "+output_jsonl_fpath=there.jsonl", "+num_repeats=2")
        done = shell.run("ng_collect_rollouts", "+config_paths=[there.yaml]", *given)
        assert done.returncode == 0, done.stderr
    assert rows(shell, "there.jsonl") == rows(shell, "here.jsonl")


def test_services_that_are_not_there_stop_the_run(shell):
    (shell.folder / "there.yaml").write_text(
        CONFIGURATION.format(isolation="description: here")
        + "my_agent: {responses_api_agents: {anybodys: {url: 'http://127.0.0.1:9'}}}\n"
    )
    given = ("+input_jsonl_fpath=" + EXAMPLES, "+output_jsonl_fpath=there.jsonl", "+agent_name=my_agent")
    done = shell.run("ng_collect_rollouts", "+config_paths=[there.yaml]", *given, "+outage_s=0.3")
    assert done.returncode == 1
    assert "the agent my_agent at http://127.0.0.1:9 cannot be reached" in done.stderr
    assert not (shell.folder / "there.jsonl").exists()
