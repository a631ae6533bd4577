"""Somebody's own programs as services: an environment in Node, all three kinds with Python's standard library alone."""

import json
import os
import shutil
import signal

import pytest
from tests.services.conftest import MODEL, cmdline, configs, curl, environ, of, post, write

pytestmark = pytest.mark.slow

# An environment of about sixty lines that knows nothing of us but what it is asked.
NODE = """\
const http = require("http");
const { randomUUID } = require("crypto");

const worlds = new Map();

const tools = {
  take({ item, count = 1 }, world) {
    if ((world.stock[item] || 0) < count) return [422, { error: `not enough ${item}` }];
    world.stock[item] -= count;
    world.cart[item] = (world.cart[item] || 0) + count;
    return [200, { cart: world.cart }];
  },
  look(_, world) {
    return [200, world.stock];
  },
};

function verify(row, world) {
  const right = JSON.stringify(world.cart) === JSON.stringify(row.want);
  const said = row.response.output.filter((item) => item.type === "message").length;
  return { ...row, reward: Number(right), messages: said, language: "JavaScript" };
}

function answer(path, asked, id) {
  if (path === "/seed_session") {
    worlds.set(id, { stock: { ...asked.stock }, cart: {} });
    return [200, {}];
  }
  const world = worlds.get(id);
  if (!world) return [409, { error: "no session" }];
  if (path === "/verify") {
    worlds.delete(id);
    return [200, verify(asked, world)];
  }
  const tool = tools[path.slice(1)];
  return tool ? tool(asked, world) : [404, { error: `no tool ${path}` }];
}

const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const known = /session=([\\w-]+)/.exec(request.headers.cookie || "");
    const id = known ? known[1] : randomUUID();
    let status, said;
    try {
      const text = Buffer.concat(pieces).toString() || "{}";
      [status, said] = request.method === "GET" ? [404, {}] : answer(request.url, JSON.parse(text), id);
    } catch (error) {
      [status, said] = [500, { error: String(error) }];
    }
    response.writeHead(status, { "Content-Type": "application/json", "Set-Cookie": `session=${id}; Path=/` });
    response.end(JSON.stringify(said));
  });
});

server.listen(Number(process.env.PORT), process.env.HOST);
"""

# What each of the three kinds has in common: a server that answers what `answer` says, and knows what it was given.
PYTHON = """\
import json, os, sys, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, build_opener, ProxyHandler

GIVEN = json.load(sys.stdin)
assert json.loads(sys.stdin.read() or "null") is None

def ask(name, path, body):
    request = Request(GIVEN["services"][name] + path, json.dumps(body).encode())
    with build_opener(ProxyHandler({})).open(request) as answer:
        return json.load(answer)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        try:
            new = uuid.uuid4().hex
            status, said = answer(self.path, asked, self.headers.get("Cookie", ""), new)
        except Exception as error:
            status, said = 500, repr(error)
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.path == "/seed_session":
            self.send_header("Set-Cookie", f"session={new}")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass

WORLDS = []
"""
SERVE = """
ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"""
ENVIRONMENT = (
    PYTHON
    + """
def answer(path, asked, cookie, new):
    if path == "/seed_session":
        WORLDS.append(f"session={new}")
        return 200, {}
    if path == "/guess":
        assert cookie in WORLDS
        return 200, {"close": abs(asked["number"] - GIVEN["secret_number"]) < 5}
    if path == "/verify":
        return 200, {**asked, "reward": float(str(GIVEN["secret_number"]) in asked["response"]["output_text"])}
    return 404, {"detail": "Not Found"}
"""
    + SERVE
)
MODEL_PROGRAM = (
    PYTHON
    + """
def answer(path, asked, cookie, new):
    assert path == "/v1/responses", path
    turns = sum(item.get("type") == "function_call_output" for item in asked["input"])
    if turns == 0:
        item = {"type": "function_call", "name": "guess", "arguments": json.dumps({"number": 40}), "call_id": "c1"}
    else:
        content = [{"type": "output_text", "text": "It is 42.", "annotations": []}]
        item = {"type": "message", "role": "assistant", "content": content}
    usage = {"input_tokens": 7, "output_tokens": 3}
    return 200, {"id": f"r{turns}", "object": "response", "output": [item], "usage": usage}
"""
    + SERVE
)
AGENT_PROGRAM = (
    PYTHON
    + """
def answer(path, asked, cookie, new):
    assert path == "/run", path
    said = ask("policy_model", "/v1/responses", {"input": asked["responses_create_params"]["input"]})
    ask("guessing", "/seed_session", asked)
    row = {**asked, "response": {**said, "output_text": "It is 42."}}
    return 200, {**ask("guessing", "/verify", row), "by": "an agent of our own"}
"""
    + SERVE
)
GUESSING = {
    "resources_servers/guessing/app.py": ENVIRONMENT,
    "responses_api_models/thinker/app.py": MODEL_PROGRAM,
    "responses_api_agents/own_loop/app.py": AGENT_PROGRAM,
    "a.yaml": """\
guessing:
  resources_servers: {guessing: {secret_number: 42}}
policy_model:
  responses_api_models: {thinker: {}}
guessing_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: guessing}
      model_server: {type: responses_api_models, name: policy_model}
own_agent:
  responses_api_agents: {own_loop: {model_server: {type: responses_api_models, name: policy_model}}}
""",
}
TELLS = """\
import http.server, json, os, sys
with open("told.json", "w") as file:
    json.dump([json.load(sys.stdin), dict(os.environ), os.getcwd()], file)
place = os.environ["HOST"], int(os.environ["PORT"])
http.server.HTTPServer(place, http.server.BaseHTTPRequestHandler).serve_forever()
"""
TOOLS = [{"type": "function", "name": "guess", "parameters": {"type": "object"}}]
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Which number?"}], "tools": TOOLS}, "id": 7}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_an_environment_in_another_language(run, shell):
    order = {"stock": {"apple": 3}, "want": {"apple": 2}, "id": "kept"}
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("take", "look")]
    lines = [
        {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "a"},
        {"type": "function_call", "name": "take", "arguments": '{"item": "pear"}', "call_id": "b"},
        {"type": "function_call", "name": "take", "arguments": '{"item": "apple", "count": 2}', "call_id": "c"},
        "Done.",
    ]
    instances = {
        "shop": {"resources_servers": {"node_shop": {"entrypoint": "server.js"}}},
        "shop_agent": {
            "responses_api_agents": {
                "simple_agent": {
                    "resources_server": {"type": "resources_servers", "name": "shop"},
                    "model_server": {"type": "responses_api_models", "name": "policy_model"},
                }
            }
        },
        "policy_model": {"responses_api_models": {"scripted_model": {"lines": lines}}},
    }
    write(shell.folder, {"resources_servers/node_shop/server.js": NODE, "a.yaml": json.dumps(instances)})
    shell.write("in.jsonl", {"responses_create_params": {"input": "Two apples.", "tools": tools}, **order})
    running = run("ng_run", configs("a.yaml"))
    assert b"node" in b"".join(cmdline(pid) for pid in running.processes())
    words = (
        "+agent_name=shop_agent",
        "+input_jsonl_fpath=in.jsonl",
        "+num_repeats=3",
        f"+head_server.port={running.port}",
    )
    done = shell.run("ng_collect_rollouts", *words, "+output_jsonl_fpath=out.jsonl")
    assert done.returncode == 0, done.stderr
    rows = shell.rows("out.jsonl")
    assert [(row["reward"], row["messages"], row["language"], row["id"]) for row in rows] == [
        (1, 1, "JavaScript", "kept")
    ] * 3
    outputs = [item for item in rows[0]["response"]["output"] if item["type"] == "function_call_output"]
    assert [json.loads(item["output"]) for item in outputs] == [
        {"apple": 3},
        {"error": "not enough pear"},
        {"cart": {"apple": 2}},
    ]
    assert [item.get("status") for item in outputs] == [None, "incomplete", None]
    assert running.end() == 0


def test_all_three_kinds_as_programs(run, shell):
    write(shell.folder, GUESSING)
    running = run("ng_run", configs("a.yaml"))
    assert {one["state"] for one in running.instances().values()} == {"ready"}
    row = post(f"{running.url('guessing_agent')}/run", ROW).json
    assert (row["reward"], row["response"]["output_text"], row["id"]) == (1, "It is 42.", 7)
    assert [item["type"] for item in row["response"]["output"]] == ["function_call", "function_call_output", "message"]
    assert (row["usage"]["total_tokens"], row["rollmill"]["turns"]) == (20, 2)
    row = post(f"{running.url('own_agent')}/run", ROW).json
    assert (row["reward"], row["by"]) == (1, "an agent of our own")
    assert running.end() == 0


@pytest.mark.parametrize("agent", ["guessing_agent", "own_agent"])
def test_a_collection_plays_with_them(run, shell, agent):
    write(shell.folder, GUESSING)
    shell.write("in.jsonl", ROW, ROW | {"id": 8})
    words = (f"+agent_name={agent}", "+input_jsonl_fpath=in.jsonl", "+output_jsonl_fpath=out.jsonl")
    done = shell.run("ng_collect_rollouts", configs("a.yaml"), *words)
    assert done.returncode == 0, done.stderr
    assert sorted((row["reward"], row["id"]) for row in shell.rows("out.jsonl")) == [(1, 7), (1, 8)]
    again = shell.run("ng_collect_rollouts", configs("a.yaml"), *words)
    assert again.returncode == 0, again.stderr
    assert len(shell.rows("out.jsonl")) == 2


def test_what_a_program_is_told(run, shell):
    files = {
        "resources_servers/mine/app.py": TELLS,
        "a.yaml": "mine:\n  resources_servers: {mine: {api_key: sk-canary-of-mine, level: 3}}\n",
    }
    write(shell.folder, files)
    running = run("ng_run", configs(of("shop"), MODEL, "a.yaml"))
    given, environment, folder = json.loads((shell.folder / "resources_servers/mine/told.json").read_text())
    assert (given["api_key"], given["level"]) == ("sk-canary-of-mine", 3)
    assert given["services"] == {name: one["url"] for name, one in running.instances().items()}
    assert environment["NEMO_GYM_CONFIG_PATH"] == "mine"
    assert environment["PORT"] == str(running.instances()["mine"]["port"])
    assert folder == str(shell.folder / "resources_servers/mine")
    assert "sk-canary-of-mine" not in json.dumps(environment)
    assert not [pid for pid in running.processes() if b"sk-canary" in cmdline(pid) + environ(pid)]
    assert curl(f"{running.url('mine')}/").status == 501
    assert running.end() == 0


def test_a_program_that_dies_is_started_again_on_its_port(run, shell):
    write(shell.folder, GUESSING)
    running = run("ng_run", configs("a.yaml"))
    before = running.instances()["guessing"]
    for pid in running.processes():
        if b"guessing/app.py" in cmdline(pid) and b"keeper.py" not in cmdline(pid):
            os.kill(pid, signal.SIGKILL)
    running.until(lambda: any("guessing is up again" in line for line in running.complained))
    assert running.instances()["guessing"]["url"] == before["url"]
    assert post(f"{running.url('guessing_agent')}/run", ROW).json["reward"] == 1
    assert running.end() == 0
