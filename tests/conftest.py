"""What several folders of tests use: the commands as a person runs them, and a model behind HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]


class Shell:
    """A scratch folder in which commands run, with nothing of the user's own around them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "POLICY_"))},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "COLUMNS": "100",
        }

    def start(self, *words: str, **options) -> subprocess.Popen:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, cwd=self.folder, env=self.env, **(pipes | options))

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def write(self, name: str, *rows: object) -> Path:
        path = self.folder / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    def rows(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


class Services:
    """What `ng_run` serves."""

    def __init__(self, shell: Shell, words: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.head = f"+head_server.port={self.port}"
        self.process = shell.start("ng_run", *words, self.head)
        self.said: list[str] = []
        for line in self.process.stdout:
            self.said.append(line)
            if "servers ready" in line:
                return
        _, err = self.process.communicate()
        raise AssertionError(f"ng_run ended with {self.process.returncode}: {err}")

    def instances(self) -> list[dict]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_instances") as answer:
            return json.load(answer)

    def url(self, name: str) -> str:
        return next(one["url"] for one in self.instances() if one["name"] == name)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, err


@pytest.fixture
def serving(shell: Shell) -> Callable[..., AbstractContextManager[Services]]:
    """Serve a configuration: `with serving("+config_paths=[…]") as services:`."""

    @contextmanager
    def serve(*words: str) -> Iterator[Services]:
        services = Services(shell, words)
        try:
            yield services
        finally:
            if services.process.poll() is None:
                services.stop()

    return serve


class ModelServer:
    """The Responses API on loopback, in threads: answers what `answer` makes of a request."""

    def __init__(self, answer: Callable[[dict], str | dict | int]) -> None:
        owner = self
        self.heard: list[dict] = []
        self.keys: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.heard.append(body)
                owner.keys.append(self.headers.get("Authorization", ""))
                said = answer(body)
                if isinstance(said, int):
                    self._send(said, {"error": {"message": f"scripted {said}"}})
                    return
                if isinstance(said, str):
                    content = [{"type": "output_text", "text": said, "annotations": []}]
                    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
                usage = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}
                self._send(200, {"id": "resp_1", "object": "response", "output": [said], "usage": usage})

            def do_GET(self) -> None:
                self._send(200, {"object": "list", "data": [{"id": "served", "object": "model"}]})

            def _send(self, status: int, body: dict) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            request_queue_size = 128  # of 5 it would leave most of those waiting that come at once

            def handle_error(self, *_: object) -> None:
                """A client that was killed is no news here."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve_model() -> Iterator[Callable[..., ModelServer]]:
    """Start a model server; give it a text, or a function of the request's body."""
    servers: list[ModelServer] = []

    def start(answer: str | Callable[[dict], str | dict | int] = "\\boxed{B}") -> ModelServer:
        servers.append(ModelServer(answer if callable(answer) else lambda _: answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
