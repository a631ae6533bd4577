"""Collections that play on services: hosts that are killed, a system that is started again, one that stays away."""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from tests.conftest import BIN
from tests.crash.check import check, check_kept, look
from tests.crash.command import Ended, Running, wait_until
from tests.crash.rows import errand, write_rows
from tests.crash.test_follow import append

HERE = Path(__file__).parent
KEYS = {
    "policy_model": "responses_api_models.openai_model",
    "errands": "resources_servers.errands",
    "my_agent": "responses_api_agents.simple_agent",
}


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in listening]


class System:
    """`ng_run` on ports that stay the same."""

    def __init__(self, folder: Path, url: str, *words: str) -> None:
        self.folder = folder
        self.port, *ports = free_ports(1 + len(KEYS))
        names = {"resources_server": {"type": "resources_servers", "name": "errands"}}
        names |= {"model_server": {"type": "responses_api_models", "name": "policy_model"}}
        given = {"openai_base_url": url, "openai_api_key": "key", "openai_model": "mock"}
        tree = {
            "policy_model": {"responses_api_models": {"openai_model": given}},
            "errands": {"resources_servers": {"errands": {"entrypoint": "app.py"}}},
            "my_agent": {"responses_api_agents": {"simple_agent": names}},
        }
        world_folder = folder / "resources_servers/errands"
        world_folder.mkdir(parents=True)
        shutil.copy(HERE / "errands.py", world_folder / "app.py")
        (folder / "system.yaml").write_text(yaml.safe_dump(tree))
        self._words = (
            *(str(BIN / "ng_run"), "+config_paths=[system.yaml]", f"+head_server.port={self.port}"),
            *(f"+{name}.{kind}.port={port}" for (name, kind), port in zip(KEYS.items(), ports, strict=True)),
            *words,
        )
        self._process: subprocess.Popen | None = None
        self.beside: list[subprocess.Popen] = []
        """What was started to play on it."""

    def start(self) -> None:
        log = self.folder / "services.log"
        with log.open("ab") as out:
            mark = out.tell()
            self._process = subprocess.Popen(
                self._words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

        def ready() -> bool:
            assert self._process.poll() is None, log.read_text()[-2000:]
            return b"servers ready" in log.read_bytes()[mark:]

        wait_until(ready, 60)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)

    def kill(self) -> None:
        """All of it, as the machine does it."""
        self._process.kill()
        self._process.wait()

    def hosts(self, name: str = "") -> set[int]:
        """The processes that serve all of it, or that instance."""
        return {one["pid"] for one in self._instances() if name in ("", one["name"]) and one["pid"]}

    def url(self, name: str) -> str:
        return next(one["url"] for one in self._instances() if one["name"] == name)

    def _instances(self) -> list[dict]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_instances") as answer:
            return json.load(answer)


class Collection:
    """`ng_collect_rollouts` on those services."""

    def __init__(self, system: System, *words: str) -> None:
        self._system = system
        self.folder, self.output = system.folder, system.folder / "out.jsonl"
        self._words = (
            *(str(BIN / "ng_collect_rollouts"), f"+head_server.port={system.port}", "+agent_name=my_agent"),
            *("+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out.jsonl", "+num_samples_in_parallel=8"),
            *words,
        )
        self._count = itertools.count()

    def start(self, *more: str) -> Running:
        number = next(self._count)
        streams = [self.folder / f"collect-{number}.{name}" for name in ("out", "err")]
        with streams[0].open("wb") as out, streams[1].open("wb") as err:
            process = subprocess.Popen(
                (*self._words, *more),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._system.beside.append(process)
        return Running(process, self, *streams)

    def lines(self) -> list[bytes]:
        return self.output.read_bytes().split(b"\n")[:-1] if self.output.exists() else []


@pytest.fixture
def system(tmp_path, serve) -> Iterator[Callable[..., System]]:
    """Start services whose model takes a moment to answer."""
    started: list[System] = []

    def start(*words: str, **script: object) -> System:
        started.append(System(tmp_path, serve(**{"latency_s": 0.2} | script).url, *words))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        for process in one.beside:
            process.kill()
            process.wait()
        one.stop()


def ended_well(running: Running, timeout: float = 120) -> Ended:
    ended = running.wait(timeout)
    assert ended.code == 0, ended
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("+workers=2",)], ids=["alone", "workers"])
def test_hosts_that_are_killed_cost_nothing_that_had_ended(tmp_path, system, words):
    planned = [errand(number) for number in range(80)]
    write_rows(tmp_path / "rows.jsonl", planned)
    services = system()
    collection = Collection(services, *words)
    running = collection.start()
    for count in (10, 40):
        running.wait_for_lines(count)
        for pid in services.hosts():
            os.kill(pid, signal.SIGKILL)
    ended_well(running)
    check(collection.output, planned)
    assert "is up again" in (tmp_path / "services.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), [*((name, 1) for name in KEYS), ("errands", 2)])
def test_a_host_of_one_instance_that_is_killed_costs_no_slot(tmp_path, system, name, processes):
    planned = [errand(number) for number in range(80)]
    write_rows(tmp_path / "rows.jsonl", planned)
    apart = (f"+{one}.{kind}.isolation=process" for one, kind in KEYS.items())
    services = system(*apart, f"+{name}.{KEYS[name]}.num_workers={processes}")
    collection = Collection(services)
    running = collection.start()
    for count in (10, 40):
        running.wait_for_lines(count)
        for pid in services.hosts(name):
            os.kill(pid, signal.SIGKILL)
    ended_well(running)
    check(collection.output, planned)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_system_that_is_stopped_and_started_on_its_ports_is_waited_for(tmp_path, system, how):
    planned = [errand(number) for number in range(80)]
    write_rows(tmp_path / "rows.jsonl", planned)
    services = system()
    collection = Collection(services)
    running = collection.start()
    running.wait_for_lines(20)
    getattr(services, how)()
    before = collection.lines()
    time.sleep(2)
    services.start()
    ended_well(running)
    check(collection.output, planned)
    check_kept(before, collection.lines())


@pytest.mark.slow
def test_a_collection_that_follows_goes_on_whatever_becomes_of_the_services(tmp_path, system):
    planned = [errand(number) for number in range(60)]
    rows = write_rows(tmp_path / "rows.jsonl", planned[:15])
    services = system()
    collection = Collection(services)
    running = collection.start("+follow=true")
    running.wait_for_lines(15)
    # While it waits for rows.
    for pid in services.hosts():
        os.kill(pid, signal.SIGKILL)
    append(rows, planned[15:30])
    running.wait_for_lines(30)
    services.stop()
    append(rows, planned[30:45])
    time.sleep(2)
    assert len(collection.lines()) == 30
    services.start()
    running.wait_for_lines(45)
    append(rows, planned[45:])
    running.wait_for_lines(50)
    services.stop()
    services.start()
    running.wait_for_lines(60)
    running.signal(signal.SIGTERM)
    ended_well(running)
    check(collection.output, planned)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["errands", "policy_model"])
def test_a_service_beside_a_collection_is_waited_for_and_then_no_more(tmp_path, system, name):
    """The agent plays in the command; its world, or its model, behind a service."""
    planned = [errand(number) for number in range(60)]
    write_rows(tmp_path / "rows.jsonl", planned)
    services = system()
    tree = yaml.safe_load((tmp_path / "system.yaml").read_text())
    kind = KEYS[name].partition(".")[0]
    tree[name] = {kind: {"elsewhere": {"url": services.url(name)}}}
    (tmp_path / "beside.yaml").write_text(yaml.safe_dump(tree))
    collection = Collection(services, "+config_paths=[beside.yaml]", "+outage_s=10")
    running = collection.start()
    running.wait_for_lines(10)
    services.stop()
    services.start()
    running.wait_for_lines(30)
    services.stop()
    ended = running.wait(60)
    assert ended.code == 1, ended
    what = {"errands": "the environment", "policy_model": "the model"}[name]
    assert what in ended.err.splitlines()[-1]
    assert "cannot be reached: Connection refused" in ended.err.splitlines()[-1]
    assert not look(collection.output).finals
    services.start()
    ended_well(collection.start())
    check(collection.output, planned)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("+follow=true",), ("+workers=2",)], ids=["", "follow", "workers"])
def test_services_that_stay_away_stop_it_with_a_line_and_the_same_command_goes_on(tmp_path, system, words):
    planned = [errand(number) for number in range(60)]
    write_rows(tmp_path / "rows.jsonl", planned)
    services = system()
    collection = Collection(services, "+outage_s=3", *words)
    running = collection.start()
    running.wait_for_lines(15)
    services.stop()
    ended = running.wait(60)
    assert ended.code == 1, ended
    last = ended.err.splitlines()[-1]
    assert "the agent my_agent at http://127.0.0.1:" in last
    assert "cannot be reached" in last
    assert "Traceback" not in ended.err
    before = collection.lines()
    assert not look(collection.output).finals
    check(collection.output, planned, finished=False)
    services.start()
    ended_well(collection.start("+follow_idle_s=1") if "+follow=true" in words else collection.start())
    check(collection.output, planned)
    check_kept(before, collection.lines())
