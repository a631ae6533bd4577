"""Every route of every service by curl, as NeMo Gym's contract has them."""

import json
from pathlib import Path

import pytest
import yaml
from tests.services.conftest import MODEL, Running, configs, curl, of, post

import rollmill

pytestmark = pytest.mark.slow

MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
ORDER = {
    "responses_create_params": {"input": "Put two apples into the cart."},
    "stock": {"apple": 3},
    "want": {"apple": 2},
    "id": "kept",
}
LINES = "+policy_model.responses_api_models.scripted_model.lines=['It is \\boxed{B}.']"


@pytest.fixture(scope="module")
def running(run_once) -> Running:
    return run_once("ng_run", configs(of("mcqa"), of("shop"), MODEL), LINES)


def question() -> dict:
    path = Path(rollmill.__file__).parent / "environments/mcqa/data/example.jsonl"
    return json.loads(path.read_text().splitlines()[0])


def test_the_head_knows_the_services(running):
    found = running.instances()
    assert {name: one["server_type"] for name, one in found.items()} == {
        "mcqa": "resources_servers",
        "mcqa_simple_agent": "responses_api_agents",
        "shop": "resources_servers",
        "shop_simple_agent": "responses_api_agents",
        "policy_model": "responses_api_models",
    }
    assert {"pid", "host", "port", "url", "entrypoint", "dir_path", "config_path", "process_name"} < found[
        "shop"
    ].keys()
    assert found["shop"]["url"] == f"http://{found['shop']['host']}:{found['shop']['port']}"
    assert curl(f"{running.head}/").json == {"status": "ok"}


def test_the_head_tells_the_configuration_as_yaml_in_a_json_string(running):
    tree = yaml.safe_load(curl(f"{running.head}/global_config_dict_yaml").json)
    [(implementation, fields)] = tree["shop"]["resources_servers"].items()
    assert (implementation, fields["port"]) == ("shop", running.instances()["shop"]["port"])
    assert tree["head_server"]["port"] == running.port


@pytest.mark.parametrize("name", ["head", "mcqa", "shop", "mcqa_simple_agent", "policy_model"])
def test_every_service_is_alive_and_describes_itself(running, name):
    url = running.head if name == "head" else running.url(name)
    alive, described = curl(f"{url}/"), curl(f"{url}/openapi.json")
    assert (alive.status, alive.json, alive.headers["content-type"]) == (200, {"status": "ok"}, "application/json")
    assert (described.json["openapi"], described.json["info"]["title"]) == ("3.1.0", name)
    assert curl(f"{url}/", "--head").status == 200
    assert curl(f"{url}/no/such/route").code == "not_found"
    assert curl(f"{url}/", "-X", "DELETE").status == 405


def test_a_session_in_a_jar(running, tmp_path):
    url, jar = running.url("shop"), str(tmp_path / "jar")
    assert post(f"{url}/seed_session", ORDER, "-c", jar).json == {}
    taken = post(f"{url}/take", {"item": "apple", "count": 2}, "-b", jar, "-c", jar)
    assert (taken.status, taken.body) == (200, "cart: {'apple': 2}")
    verdict = post(f"{url}/verify", ORDER | {"response": {"output": [MESSAGE]}}, "-b", jar).json
    assert (verdict["reward"], verdict["reward_components"]["right_cart"], verdict["id"]) == (1.2, 1, "kept")
    assert post(f"{url}/take", {"item": "apple"}, "-b", jar).code == "session_ended"


def test_two_jars_never_see_each_others_world(running, tmp_path):
    url, one, other = running.url("shop"), str(tmp_path / "one"), str(tmp_path / "other")
    for jar in (one, other):
        post(f"{url}/seed_session", ORDER, "-c", jar)
    assert post(f"{url}/take", {"item": "apple", "count": 3}, "-b", one).status == 200
    assert post(f"{url}/take", {"item": "apple", "count": 3}, "-b", other).status == 200
    refused = post(f"{url}/take", {"item": "apple"}, "-b", one)
    assert (refused.status, refused.json) == (422, {"error": "not enough apple"})
    for jar in (one, other):
        assert post(f"{url}/close", {}, "-b", jar).status == 200


def test_the_tool_that_there_is_not_and_the_session_that_there_is_not(running):
    url = running.url("shop")
    assert post(f"{url}/steal").code == "unknown_tool"
    assert post(f"{url}/take", {"item": "apple"}).code == "no_session"


def test_a_verdict_without_a_session(running):
    row = question() | {"response": {"output": [{**MESSAGE, "content": "\\boxed{B}"}]}}
    verdict = post(f"{running.url('mcqa')}/verify", row).json
    assert verdict["reward"] in (0, 1)
    assert verdict["extracted_answer"] == "B"
    assert curl(f"{running.url('mcqa')}/reverify_mode").json == "stateless"


def test_metrics_of_many_rows(running):
    rows = [{"reward": reward, "_ng_task_index": 0, "_ng_rollout_index": n} for n, reward in enumerate((1.0, 0.0))]
    for name in ("mcqa", "mcqa_simple_agent"):
        found = post(f"{running.url(name)}/aggregate_metrics", {"verify_responses": rows}).json
        assert found["agent_metrics"]["mean/reward"] == 0.5
        assert found["key_metrics"]["mean/reward"] == 0.5
        assert len(found["group_level_metrics"]) == 1


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/0-0", "/ng-rollout/7-1-a2/training-token-capture"])
def test_an_agent_plays_a_row(running, prefix):
    row = post(f"{running.url('mcqa_simple_agent')}{prefix}/run", question()).json
    assert row["extracted_answer"] == "B"
    assert row["response"]["output_text"] == "It is \\boxed{B}."
    assert row["agent_ref"] == {"type": "responses_api_agents", "name": "mcqa_simple_agent"}


def test_an_agent_answers_a_conversation_or_says_what_it_needs(running):
    answer = post(f"{running.url('mcqa_simple_agent')}/v1/responses", {"input": "Hello?"})
    assert (answer.status, answer.code) == (422, "invalid")
    assert "/run" in answer.json["error"]["message"]


def test_a_model_speaks_both_apis(running):
    url = running.url("policy_model")
    answer = post(f"{url}/v1/responses", {"input": "Hello?", "model": "any"}).json
    assert (answer["object"], answer["output_text"]) == ("response", "It is \\boxed{B}.")
    answer = post(f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello?"}]}).json
    assert answer["choices"][0]["message"]["content"] == "It is \\boxed{B}."
    assert curl(f"{url}/v1/models").json["data"][0]["id"] == "scripted"


def test_a_model_streams_both(running):
    url = running.url("policy_model")
    stream = post(f"{url}/v1/responses", {"input": "Hello?", "stream": True}, "--no-buffer")
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.body.startswith("event: response.created\n")
    assert "event: response.completed\n" in stream.body
    talk = {"messages": [{"role": "user", "content": "Hello?"}], "stream": True}
    assert post(f"{url}/v1/chat/completions", talk).body.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("name", "path"),
    [("mcqa", "verify"), ("shop", "seed_session"), ("policy_model", "v1/responses"), ("mcqa_simple_agent", "run")],
)
def test_what_is_wrong_is_said_with_a_4xx(running, name, path):
    url = f"{running.url(name)}/{path}"
    assert curl(url, "-d", "{nope").code == "not_json"
    assert curl(url, "-d", "{}").code == "invalid"
    assert curl(url, "-X", "GET").code == "wrong_method"


def test_a_large_body_and_one_that_is_too_large(running, tmp_path):
    url = f"{running.url('mcqa')}/verify"
    for size, status in ((2**20, 200), (2**26 + 1, 413)):
        path = tmp_path / "row.json"
        path.write_text(json.dumps(question() | {"response": {"output": []}, "note": "x" * size}))
        assert curl(url, "--data-binary", f"@{path}").status == status
        assert curl(url, "--data-binary", f"@{path}", "-H", "Transfer-Encoding: chunked").status == status


def test_another_host_and_another_page_are_refused(running):
    for url in (running.head, running.url("shop"), running.url("policy_model")):
        assert curl(f"{url}/", "-H", "Host: evil.example").code == "wrong_host"
        assert curl(f"{url}/", "-H", "Origin: https://evil.example").code == "wrong_origin"
        assert curl(f"{url}/", "-H", "Origin: http://[").status == 403
        assert curl(f"{url}/", "-H", "Host: localhost").status == 200
