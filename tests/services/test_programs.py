"""Programs of others as services: in another language, without this package, told what they need on standard input."""

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed (Debian: nodejs)")

ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
}
CONFIGURATION = """\
counter:
  resources_servers:
    counter: {{entrypoint: {entrypoint}, domain: agent, api_key: sk-for-the-counter}}
counter_simple_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: counter}}
      model_server: {{type: responses_api_models, name: policy_model}}
policy_model:
  responses_api_models:
    scripted_model:
      lines:
      - {{type: function_call, name: add, arguments: {{by: 2}}}}
      - {{type: function_call, name: add, arguments: {{by: wrong}}}}
      - {{type: function_call, name: verify, arguments: {{}}}}
      - {{type: function_call, name: add, arguments: {{by: 3}}}}
      - five
"""
AGENT = '''
"""An agent of the standard library: it answers every row itself."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

told = json.load(sys.stdin)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({"status": "ok"})

    def do_POST(self):
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        part = {"type": "output_text", "text": told["greeting"], "annotations": []}
        message = {"type": "message", "role": "assistant", "content": [part]}
        self.say({**row, "response": {"id": "r", "output": [message]}, "reward": 0.5, "politeness": 1})

    def say(self, said):
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
'''


def placed(shell, name: str, kind: str, entrypoint: str, text: str) -> None:
    folder = shell.folder / kind / name
    folder.mkdir(parents=True)
    (folder / entrypoint).write_text(text)


def rows(number: int) -> list[dict]:
    return [
        {"responses_create_params": {"input": f"Count to five, {n}.", "tools": [ADD]}, "want": 5 + n % 2}
        for n in range(number)
    ]


@pytest.fixture
def counter(shell):
    """A folder with an environment in JavaScript, and a configuration that plays in it."""
    placed(shell, "counter", "resources_servers", "server.js", Path(__file__).with_name("counter.js").read_text())
    (shell.folder / "all.yaml").write_text(CONFIGURATION.format(entrypoint="server.js"))
    shell.write("tasks.jsonl", *rows(20))
    return shell


def check_counted(shell, name: str) -> None:
    found = shell.rows(name)
    assert sorted(row["reward"] for row in found) == [0.0] * 10 + [1.0] * 10
    for row in found:
        assert (row["calls"], row["language"]) == (2, "JavaScript")
        outputs = [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]
        assert json.loads(outputs[0]) == {"sum": 2}
        assert json.loads(outputs[1]) == {"error": "`by` is a whole number"}
        # A model cannot ask for its own verdict.
        assert "Unknown tool: verify" in outputs[2]
        assert json.loads(outputs[3]) == {"sum": 5}


@needs_node
def test_an_environment_in_javascript_plays_in_a_collection(counter):
    words = ("+config_paths=[all.yaml]", "+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=a.jsonl")
    done = counter.run("ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stderr
    assert "Starting services" in done.stderr
    assert "(counter) counting at" in done.stderr
    check_counted(counter, "a.jsonl")
    assert "sk-for-the-counter" not in (counter.folder / "a.run/manifest.json").read_text()


@needs_node
def test_an_environment_in_javascript_is_served_beside_ours(counter, serving):
    with serving("+config_paths=[all.yaml]") as services:
        pids = {one["name"]: one["pid"] for one in services.instances()}
        assert pids["counter"] != pids["policy_model"] == pids["counter_simple_agent"]
        words = ("+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=b.jsonl")
        done = counter.run("ng_collect_rollouts", services.head, *words)
        assert done.returncode == 0, done.stderr
        environment = Path(f"/proc/{pids['counter']}/environ")
        if environment.exists():
            assert b"sk-for-the-counter" not in environment.read_bytes()
    check_counted(counter, "b.jsonl")


def test_an_agent_of_the_standard_library(shell):
    placed(shell, "polite", "responses_api_agents", "app.py", AGENT)
    (shell.folder / "all.yaml").write_text(
        "polite: {responses_api_agents: {polite: {entrypoint: app.py, greeting: Good day}}}\n"
    )
    shell.write("tasks.jsonl", *rows(6))
    model = "responses_api_models/scripted_model/configs/scripted_model.yaml"
    words = (f"+config_paths=[all.yaml,{model}]", "+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=c.jsonl")
    done = shell.run("ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stderr
    for row in shell.rows("c.jsonl"):
        assert (row["reward"], row["politeness"], row["response"]["output_text"]) == (0.5, 1.0, "Good day")
