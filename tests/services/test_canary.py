"""A key that only its model may see: it is looked for in everything that is written, printed, answered and shown."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.services.conftest import Running, cmdline, configs, curl, environ, of, post, write

pytestmark = pytest.mark.slow

KEYS = {"plain": "sk-canary-8f2e6c0d1b7a", "quoted": 'sk-"canary"\\8f2e/6c0d&1b7a'}
WORLD = """\
import logging
import rollmill as rm

class Careless(rm.Environment):
    "Says its key wherever it can."

    verification = "stateless"

    async def setup(self) -> None:
        print("begun with", self.config["api_key"])
        logging.getLogger("careless").warning("begun with %s", self.config["api_key"])
        try:
            raise ValueError(self.config["api_key"])
        except ValueError:
            logging.getLogger("careless").exception("as was to be expected")
        if self.task.get("breaks") == "setup":
            raise RuntimeError(f"cannot begin with {self.config['api_key']}")

    @rm.tool
    def look(self) -> str:
        "Look."
        raise RuntimeError(f"nothing to see with {self.config['api_key']}")

    @rm.tool
    def fail(self) -> str:
        "Fail as a caller does."
        raise rm.ConfigError(f"wrong key {self.config['api_key']}")

    @classmethod
    def check_task(cls, task, config):
        if task.get("breaks") == "check":
            raise rm.ConfigError(f"not with {config['api_key']}")

    def verify(self, task, response):
        raise RuntimeError(f"no verdict with {self.config['api_key']}")
"""
PROGRAM = """\
import json, os, sys, http.server
given = json.load(sys.stdin)
print("given", given["api_key"], flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *_): pass
http.server.HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"""
INSTANCES = """\
careless:
  resources_servers: {careless.py:Careless: {api_key: "${policy_api_key}"}}
careless_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: careless}
      model_server: {type: responses_api_models, name: policy_model}
apart:
  resources_servers: {careless.py:Careless: {api_key: "${policy_api_key}", isolation: process}}
theirs:
  resources_servers: {theirs: {api_key: "${policy_api_key}"}}
"""
MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
ROW = {"responses_create_params": {"input": "x"}}


class Echo:
    """A model that is broken in another way each time, and says the key that it was shown whenever it can."""

    def __init__(self) -> None:
        self.shown: set[str] = set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
                key = self.headers.get("Authorization", "")
                owner.shown.add(key)
                way = next((way for way in WAYS if f"way-{way}." in asked), "text")
                status, body = WAYS[way](key)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("X-Key", key)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.do_POST() if "Content-Length" in self.headers else self._models()

            def _models(self) -> None:
                body = json.dumps({"error": {"message": f"who is {self.headers.get('Authorization')}?"}}).encode()
                self.send_response(404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _says(status: int, **fields: object) -> tuple[int, bytes]:
    return status, json.dumps(fields).encode()


WAYS = {
    "401": lambda key: _says(401, error={"message": f"Incorrect API key provided: {key}", "code": "invalid_api_key"}),
    "400": lambda key: _says(400, error={"message": f"{key} may not ask this"}),
    "404": lambda key: _says(404, detail=f"no model for {key}"),
    "500": lambda key: _says(500, error={"message": f"panic: {key}", "code": key}),
    "html": lambda key: (502, f"<html>{' ' * 1990}{key}</html>".encode()),
    "error": lambda key: _says(200, output=[], error={"code": "server_error", "message": f"sorry {key}"}),
    "odd": lambda key: _says(200, output=[{"type": "message", "role": [key]}]),
    "empty": lambda key: (200, b""),
    "text": lambda key: (500, f"Bearer: {key}\r\n{key}".encode()),
}


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


def configured(folder: Path, echo: Echo, key: str) -> None:
    env = {"policy_base_url": echo.url, "policy_api_key": key, "policy_model_name": "m"}
    files = {
        "env.yaml": json.dumps(env),
        "careless.py": WORLD,
        "resources_servers/theirs/app.py": PROGRAM,
        "a.yaml": INSTANCES,
    }
    write(folder, files)


def asked(running: Running) -> list[str]:
    """Everything that everybody answers to everything."""
    found = [
        curl(f"{running.head}{path}")
        for path in ("/", "/openapi.json", "/server_instances", "/global_config_dict_yaml")
    ]
    urls = {name: one["url"] for name, one in running.instances().items()}
    for name in ("careless", "apart"):
        url = urls[name]
        found += [curl(f"{url}{path}") for path in ("/", "/openapi.json", "/environment", "/reverify_mode")]
        found += [post(f"{url}/seed_session", ROW | {"breaks": way}) for way in ("setup", "check")]
        seeded = post(f"{url}/seed_session", ROW)
        cookie = seeded.headers["set-cookie"].partition(";")[0]
        found += [seeded, *(post(f"{url}/{path}", {}, "-b", cookie) for path in ("look", "fail", "nothing"))]
        found += [post(f"{url}/verify", ROW | {"response": {"output": []}}, "-b", cookie)]
        found += [post(f"{url}/verify", ROW | {"response": {"output": []}})]
    # At once: a model that answers nobody is given up sooner than one that fails one caller.
    with ThreadPoolExecutor(64) as pool:
        found += pool.map(lambda one: post(*one), [one for way in WAYS for one in calls(urls, f"way-{way}.")])
    found.append(curl(f"{urls['policy_model']}/v1/models"))
    assert sum(answer.status >= 500 for answer in found) > 20
    return [f"{answer.headers}{answer.body}" for answer in found]


def calls(urls: dict[str, str], words: str) -> Iterator[tuple[str, dict]]:
    for stream in (False, True):
        yield f"{urls['policy_model']}/v1/responses", {"input": words, "stream": stream}
        talk = [{"role": "user", "content": words}]
        yield f"{urls['policy_model']}/v1/chat/completions", {"messages": talk, "stream": stream}
    yield f"{urls['careless_agent']}/run", {"responses_create_params": {"input": words}}
    yield f"{urls['careless_agent']}/v1/responses", {"input": words}


def forms(key: str) -> list[str]:
    """The key as it is, and as JSON, YAML and Python write it inside of other text."""
    return list(
        {key, json.dumps(key)[1:-1], repr(key)[1:-1], key.replace('"', '\\"'), json.dumps(json.dumps(key))[1:-1]}
    )


def betrays(text: str, key: str) -> list[str]:
    # A part of it that is long enough to be worth something.
    return [form for form in [*forms(key), *(key[at : at + 12] for at in range(len(key) - 11))] if form in text]


@pytest.mark.parametrize("kind", KEYS)
def test_services_keep_it(run, shell, echo, kind):
    key = KEYS[kind]
    configured(shell.folder, echo, key)
    running = run("ng_run", configs("a.yaml", MODEL), "+outage_s=0.5", "+nemo_gym_log_dir=logs")
    answers = asked(running)
    seen = {pid: (cmdline(pid) + environ(pid)).decode("utf-8", "replace") for pid in running.processes()}
    assert running.end() == 0
    assert echo.shown == {f"Bearer {key}"}
    assert len(seen) >= 4
    said = "".join(running.said + running.complained)
    assert "begun with ***" in said
    assert "given ***" in said
    for what, text in (*seen.items(), ("said", said), *enumerate(answers)):
        assert not betrays(str(text), key), (what, text)
    assert not written(shell.folder, key)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("where", ["objects", "services"])
def test_collections_keep_it(run, shell, echo, kind, where):
    key = KEYS[kind]
    configured(shell.folder, echo, key)
    words = [
        *("ng_collect_rollouts", "+agent_name=careless_agent", "+input_jsonl_fpath=in.jsonl"),
        *("+output_jsonl_fpath=out.jsonl", "+nemo_gym_files=true", "+max_attempts=1", "+outage_s=0.5"),
    ]
    rows = [{"responses_create_params": {"input": f"way-{way}."}, "id": way} for way in ("400", "error", "html", "odd")]
    shell.write("in.jsonl", *rows, ROW | {"breaks": "setup"})
    if where == "services":
        running = run("ng_run", configs("a.yaml", MODEL), "+outage_s=0.5")
        words.append(f"+head_server.port={running.port}")
    else:
        write(shell.folder, {"a.yaml": INSTANCES.partition("apart:")[0]})
        words.append(configs("a.yaml", MODEL))
    done = shell.run(*words)
    assert done.returncode == 1, done.stderr
    assert "***" in "".join(
        path.read_text() for path in (shell.folder / "out.run").iterdir() if path.suffix == ".ndjson"
    )
    # What an environment prints itself is its own affair where it is an object of the command.
    said = "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("begun with"))
    assert not betrays(said, key)
    assert where == "objects" or not betrays(done.stderr, key)
    assert not written(shell.folder, key)


def written(folder: Path, key: str) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "env.yaml"]
    return [path for path in files if betrays(path.read_bytes().decode("utf-8", "replace"), key)]


def test_the_search_would_find_it():
    for key in KEYS.values():
        for text in (key, json.dumps({"a": key}), json.dumps(json.dumps(key)), repr(key), f"x{key[3:]}", key[:-2]):
            assert betrays(text, key), text
    assert of("shop")
