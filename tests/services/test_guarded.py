"""A host that others can reach: closed to who shows no token, open to commands that find it in their configuration."""

import json
import socket

import pytest
from tests.services.conftest import MODEL, Running, configs, curl, of, post, write

pytestmark = pytest.mark.slow

TOKEN = "token-of-these-tests"
WORDS = (configs(of("shop"), MODEL), "+default_host=0.0.0.0", "+head_server.host=0.0.0.0")
SHOWN = ("-H", f"Authorization: Bearer {TOKEN}")
ORDER = {"responses_create_params": {"input": "x"}, "stock": {"apple": 3}, "want": {}}


@pytest.fixture(scope="module")
def running(run_once) -> Running:
    return run_once("ng_run", *WORDS, files={"env.yaml": f"access_token: {TOKEN}\n"})


def urls(running: Running) -> dict[str, str]:
    told = curl(f"{running.head}/server_instances", *SHOWN).json
    return {"head": running.head} | {one["name"]: one["url"] for one in told}


def routes(url: str) -> list[tuple[str, str]]:
    paths = curl(f"{url}/openapi.json", *SHOWN).json["paths"]
    return [
        (path.replace("{tool}", "nothing"), method.upper()) for path, methods in paths.items() for method in methods
    ]


def test_every_route_of_every_service_wants_the_token(running):
    found = [(name, url, *route) for name, url in urls(running).items() for route in routes(url)]
    assert len(found) > 20
    for name, url, path, method in found:
        for words in ((), ("-H", "Authorization: Bearer x"), ("-H", f"Authorization: Basic {TOKEN}")):
            answer = curl(f"{url}{path}", "-X", method, "-d", "{}", *words)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), (name, method, path)
        assert curl(f"{url}{path}", "-X", method, "-d", "{}", *SHOWN).status != 401


def test_nothing_else_is_told_either(running):
    for url in urls(running).values():
        for path in ("/nope", "/%2e%2e/x", "/ng-rollout/1/verify", "/openapi.json"):
            assert curl(f"{url}{path}").status == 401


def test_under_whatever_name_it_is_called(running):
    url = urls(running)["shop"]
    answer = curl(f"{url}/", *SHOWN, "-H", "Host: gym.example", "-H", "Origin: https://a.page")
    assert answer.status == 200


def test_services_show_it_to_each_other(run, shell):
    write(shell.folder, {"env.yaml": f"access_token: {TOKEN}\n"})
    running = run("ng_run", *WORDS, "+shop.resources_servers.shop.isolation=process")
    found = urls(running)
    row = post(f"{found['shop_simple_agent']}/run", ORDER, *SHOWN)
    assert (row.status, row.json["response"]["output_text"]) == (200, "ok")


def test_a_collection_shows_it_too_and_one_without_it_is_told(running, shell):
    words = (
        *("ng_collect_rollouts", "+agent_name=shop_simple_agent", "+input_jsonl_fpath=in.jsonl"),
        *("+output_jsonl_fpath=out.jsonl", f"+head_server.port={running.port}"),
    )
    shell.write("in.jsonl", ORDER)
    refused = shell.run(*words)
    assert refused.returncode == 2
    assert "wants another access_token" in refused.stderr.splitlines()[-1]
    write(shell.folder, {"env.yaml": f"access_token: {TOKEN}\n"})
    done = shell.run(*words)
    assert done.returncode == 0, done.stderr
    assert len(shell.rows("out.jsonl")) == 1
    kept = [path for path in shell.folder.rglob("*") if path.is_file() and path.name != "env.yaml"]
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in done.stdout + done.stderr


def test_the_token_is_in_no_answer(running):
    for url in urls(running).values():
        for path in (
            "/",
            "/openapi.json",
            "/global_config_dict_yaml",
            "/server_instances",
            "/environment",
            "/v1/models",
        ):
            assert TOKEN not in curl(f"{url}{path}", *SHOWN).body


def test_other_names_are_allowed_by_name(run):
    running = run("ng_run", configs(of("shop"), MODEL), "+allowed_hosts=[Gym.internal]")
    url = running.url("shop")
    assert curl(f"{url}/", "-H", "Host: gym.internal:80").status == 200
    assert curl(f"{url}/", "-H", "Host: gym.internal.evil.example").code == "wrong_host"
    assert curl(f"{running.head}/", "-H", "Host: gym.internal").status == 200


def test_a_program_that_knows_no_token_is_not_put_before_others(shell):
    files = {
        "env.yaml": f"access_token: {TOKEN}\n",
        "resources_servers/mine/app.py": "print('started')\n",
        "a.yaml": "mine:\n  resources_servers: {mine: {host: 0.0.0.0}}\n",
    }
    write(shell.folder, files)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = shell.run("ng_run", configs("a.yaml"), f"+head_server.port={port}", timeout=30)
    assert done.returncode == 2
    assert done.stderr.startswith("rollmill: mine.resources_servers.mine.host: a program ")


def test_a_session_of_another_process_is_passed_on_with_the_token(run, shell):
    write(shell.folder, {"env.yaml": f"access_token: {TOKEN}\n"})
    running = run("ng_run", *WORDS, "+shop.resources_servers.shop.num_workers=3")
    url = urls(running)["shop"]
    for _ in range(6):
        cookie = post(f"{url}/seed_session", ORDER, *SHOWN).headers["set-cookie"].partition(";")[0]
        for left in (2, 1, 0):
            taken = post(f"{url}/take", {"item": "apple"}, *SHOWN, "-b", cookie)
            assert (taken.status, json.loads(taken.body.replace("'", '"').removeprefix("cart: "))) == (
                200,
                {"apple": 3 - left},
            )
        assert post(f"{url}/take", {"item": "apple"}, *SHOWN, "-b", cookie).status == 422
        assert post(f"{url}/close", {}, *SHOWN, "-b", cookie).status == 200
        assert post(f"{url}/take", {"item": "apple"}, *SHOWN, "-b", cookie).code == "session_ended"
