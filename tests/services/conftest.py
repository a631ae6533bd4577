"""Services as processes: what curl hears of them, and what is left of them when they have ended."""

import json
import os
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import Shell

MARK = "ROLLMILL_TESTED_AS"
WAIT = threading.Event()
"""Never set: waiting for it is a pause."""


class Curled(NamedTuple):
    """What curl heard."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


def curl(url: str, *words: str) -> Curled:
    """The real one, without a proxy; `words` are its own."""
    command = ("curl", "--silent", "--show-error", "--include", "--noproxy", "*", "--max-time", "30", *words, url)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    head, _, body = done.stdout.partition("\n\n")
    while head.split()[1] == "100":
        head, _, body = body.partition("\n\n")
    status, *lines = head.splitlines()
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Curled(int(status.split()[1]), headers, body)


def post(url: str, body: object = None, *words: str) -> Curled:
    return curl(url, "-X", "POST", "-H", "Content-Type: application/json", "-d", json.dumps(body or {}), *words)


class Running:
    """A command that serves, in a process group of its own, and everything that it starts, known by a mark."""

    def __init__(self, shell: Shell, *words: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.mark = uuid.uuid4().hex
        self.folder = shell.folder
        self.said: list[str] = []
        self.complained: list[str] = []
        shell.env[MARK] = self.mark
        command = (*words, f"+head_server.port={self.port}")
        self.process = shell.start(*command, start_new_session=True)
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.said), (self.process.stderr, self.complained))
        ]
        for reader in self._readers:
            reader.start()

    def ready(self, word: str = "servers ready") -> "Running":
        self.until(lambda: any(word in line for line in self.said))
        return self

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        lines.extend(iter(stream.readline, ""))

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(6000):
            if done():
                return
            if self.process.poll() is not None:
                self.join()
                if done():
                    return
                break
            WAIT.wait(0.01)
        raise AssertionError(f"{self.process.poll()}: {''.join(self.said)}{''.join(self.complained)}")

    @property
    def head(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def instances(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in curl(f"{self.head}/server_instances").json}

    def url(self, name: str) -> str:
        return self.instances()[name]["url"]

    def processes(self) -> set[int]:
        """All that carry the mark, whoever their parent is by now."""
        mark = f"{MARK}={self.mark}".encode()
        return {pid for pid in pids() if mark in environ(pid).split(b"\0")}

    def programs(self) -> set[int]:
        """Those of them that serve instances of ours."""
        return {pid for pid in self.processes() if b"rollmill.services.program" in cmdline(pid)}

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and wait until nothing is left: neither the command nor what it had started."""
        ports = [self.port, *(one["port"] for one in self.instances().values())]
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.join()
        self.gone()
        # Its memory goes before its sockets do.
        soon(lambda: not [port for port in ports if listens(port)])
        return code

    def gone(self) -> None:
        soon(lambda: not self.processes(), lambda: {pid: cmdline(pid) for pid in self.processes()})

    def join(self) -> None:
        for reader in self._readers:
            reader.join(20)

    def kill(self) -> None:
        for pid in {self.process.pid, *self.processes()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(30)
        self.join()
        self.process.stdout.close()
        self.process.stderr.close()


def soon(done: Callable[[], bool], why: Callable[[], object] = str) -> None:
    """Wait until something is so."""
    for _ in range(1500):
        if done():
            return
        WAIT.wait(0.01)
    raise AssertionError(why())


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def environ(pid: int) -> bytes:
    return _proc(pid, "environ")


def cmdline(pid: int) -> bytes:
    return _proc(pid, "cmdline").replace(b"\0", b" ")


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        # It has ended, or is not ours to look at.
        return b""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


Run = Callable[..., Running]


@pytest.fixture
def run(shell: Shell) -> Iterator[Run]:
    """Start a command that serves, and leave nothing of it behind."""
    started: list[Running] = []

    def start(*words: str, wait: str = "servers ready") -> Running:
        started.append(Running(shell, *words))
        return started[-1].ready(wait) if wait else started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The same, for services that all tests of a module use."""
    started: list[Running] = []

    def start(*words: str, files: dict[str, str] | None = None) -> Running:
        shell = Shell(tmp_path_factory.mktemp("served"))
        write(shell.folder, files or {})
        started.append(Running(shell, *words))
        return started[-1].ready()

    yield start
    for one in started:
        one.kill()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


CONFIGS = "+config_paths=[{}]"
MODEL = "responses_api_models/scripted_model/configs/scripted_model.yaml"


def configs(*paths: str) -> str:
    return f"+config_paths=[{','.join(paths)}]"


def of(environment: str) -> str:
    return f"resources_servers/{environment}/configs/{environment}.yaml"
