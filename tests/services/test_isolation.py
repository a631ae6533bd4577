"""Instances at a distance: processes of their own, several of them, and virtual environments with what they ask for."""

import hashlib
import os
import signal
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from tests.services.conftest import MODEL, cmdline, configs, curl, of, post, write

pytestmark = pytest.mark.slow

ORDER = {"responses_create_params": {"input": "x"}, "stock": {"apple": 3}, "want": {}}
TASK = {"responses_create_params": {"input": "x"}}
WHERE = """\
import os, sys
import rollmill as rm

class Where(rm.Environment):
    verification = "stateless"

    @rm.tool
    def tell(self) -> dict[str, str]:
        "Tell where this is."
        return {"pid": str(os.getpid()), "python": sys.executable}

    def verify(self, task, response):
        return {"reward": 1, "pid": str(os.getpid())}
"""
NEEDY = """\
import sys
import rollmill as rm
from tiny_dependency import ANSWER

class Needy(rm.Environment):
    verification = "stateless"

    def verify(self, task, response):
        return {"reward": ANSWER, "python": sys.executable, "us": rm.__file__}
"""
INSTANCES = """\
here:
  resources_servers: {where.py:Where: {}}
there:
  resources_servers: {where.py:Where: {isolation: process}}
many:
  resources_servers: {where.py:Where: {num_workers: 3}}
"""
VERIFY = {**TASK, "response": {"output": []}}


def seeded(url: str) -> str:
    return post(f"{url}/seed_session", TASK).headers["set-cookie"].partition(";")[0]


def told(url: str, cookie: str) -> dict[str, str]:
    return post(f"{url}/tell", {}, "-b", cookie).json


def test_processes_of_their_own(run, shell):
    write(shell.folder, {"where.py": WHERE, "a.yaml": INSTANCES})
    running = run("ng_run", configs("a.yaml", MODEL))
    found = running.instances()
    assert found["here"]["process_name"] == found["policy_model"]["process_name"] == "shared"
    assert (found["there"]["process_name"], found["many"]["num_workers"]) == ("there", 3)
    there = told(found["there"]["url"], seeded(found["there"]["url"]))
    assert there["pid"] == str(found["there"]["pid"]) != str(found["here"]["pid"])
    assert running.end() == 0


def test_a_session_is_one_world_whichever_process_hears_of_it(run, shell):
    write(shell.folder, {"where.py": WHERE, "a.yaml": INSTANCES})
    running = run("ng_run", configs("a.yaml", MODEL))
    url = running.url("many")
    held = {}
    for _ in range(12):
        cookie = seeded(url)
        held[cookie] = {told(url, cookie)["pid"] for _ in range(6)}
        assert len(held[cookie]) == 1
    assert len(set.union(*held.values())) > 1, "they take turns"
    # Every connection may meet another process, and every process knows where the session is.
    for cookie, pids in held.items():
        assert {post(f"{url}/verify", VERIFY, "-b", cookie).json["pid"]} == pids
        assert post(f"{url}/tell", {}, "-b", cookie).code == "session_ended"


def test_the_sessions_of_a_process_that_died_have_ended_and_the_others_have_not(run, shell):
    write(shell.folder, {"where.py": WHERE, "a.yaml": INSTANCES})
    running = run("ng_run", configs("a.yaml", MODEL))
    url = running.url("many")
    held = {cookie: told(url, cookie)["pid"] for cookie in (seeded(url) for _ in range(12))}
    [killed, *_] = sorted(set(held.values()))
    os.kill(int(killed), signal.SIGKILL)
    running.until(lambda: any("is up again" in line for line in running.complained))
    for cookie, pid in held.items():
        if pid == killed:
            assert post(f"{url}/tell", {}, "-b", cookie).code == "session_ended"
        else:
            assert told(url, cookie)["pid"] == pid
    assert running.end() == 0


def test_a_rollout_of_an_agent_across_processes(run):
    running = run(
        "ng_run", configs(of("shop"), MODEL), "+num_workers=2", "+shop.resources_servers.shop.isolation=process"
    )
    assert len(running.programs()) == 4
    for _ in range(6):
        row = post(f"{running.url('shop_simple_agent')}/run", ORDER)
        assert (row.status, row.json["response"]["output_text"]) == (200, "ok")
    assert running.end() == 0


# Virtual environments.


def wheel(folder: Path, name: str, version: str, code: str) -> Path:
    """A wheel of one module, made by hand, so that nothing is fetched from anywhere."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in files.items()
    }
    files[f"{info}/RECORD"] = (
        "".join(f"{path},sha256={digest},\n" for path, digest in digests.items()) + f"{info}/RECORD,,\n"
    )
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in files.items():
            archive.writestr(place, text)
    return path


@pytest.fixture
def needy(shell):
    """A server folder that asks for a package which is nowhere but in its own wheel."""
    folder = shell.folder / "resources_servers" / "needy"
    write(
        shell.folder, {"resources_servers/needy/app.py": NEEDY, "a.yaml": "needy:\n  resources_servers: {needy: {}}\n"}
    )
    path = wheel(folder, "tiny_dependency", "1.0", "ANSWER = 0.5\n")
    (folder / "requirements.txt").write_text(f"# what it needs\n-e nemo-gym[dev] @ ../../\n--no-index\n./{path.name}\n")
    return folder


def verdict(running) -> dict:
    return post(f"{running.url('needy')}/verify", VERIFY).json


def test_requirements_are_installed_where_only_it_sees_them(run, needy):
    running = run("ng_run", configs("a.yaml", of("shop"), MODEL))
    found = verdict(running)
    assert (found["reward"], found["python"]) == (0.5, str(needy / ".venv/bin/python"))
    assert found["us"].startswith(str(Path(sys.prefix).parent)) or "rollmill" in found["us"]
    assert any(line.startswith("Installing ") for line in running.complained)
    assert sum(sys.executable.encode() in cmdline(pid) for pid in running.programs()) == 1
    assert running.end() == 0
    again = run("ng_run", configs("a.yaml"))
    assert verdict(again)["reward"] == 0.5
    assert not any(line.startswith("Installing ") for line in again.complained)
    assert again.end() == 0


def test_other_requirements_are_installed_anew_unless_it_is_told_not_to(run, needy):
    assert verdict(run("ng_run", configs("a.yaml")))["reward"] == 0.5
    path = wheel(needy, "tiny_dependency", "2.0", "ANSWER = 0.25\n")
    (needy / "requirements.txt").write_text(f"--no-index\n./{path.name}\n")
    assert verdict(run("ng_run", configs("a.yaml"), "+skip_venv_if_present=true"))["reward"] == 0.5
    assert verdict(run("ng_run", configs("a.yaml")))["reward"] == 0.25


def test_its_environment_may_lie_elsewhere(run, needy, tmp_path):
    running = run("ng_run", configs("a.yaml"), f"+uv_venv_dir={tmp_path}/venvs")
    assert verdict(running)["python"] == f"{tmp_path}/venvs/resources_servers/needy/.venv/bin/python"
    assert not (needy / ".venv").exists()


def test_a_program_has_its_requirements_too(run, needy):
    program = """\
import http.server, json, os, sys
from tiny_dependency import ANSWER

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([ANSWER, sys.executable]).encode())

    def log_message(self, *_):
        pass

http.server.HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"""
    (needy / "app.py").write_text(program)
    running = run("ng_run", configs("a.yaml"))
    assert curl(f"{running.url('needy')}/").json == [0.5, str(needy / ".venv/bin/python")]
    assert running.end() == 0


def test_without_isolation_it_is_missed(shell, needy):
    done = shell.run(
        "ng_run", configs("a.yaml"), "+needy.resources_servers.needy.isolation=process", "+head_server.port=0"
    )
    assert done.returncode == 2
    assert "tiny_dependency" in done.stderr


def test_requirements_that_cannot_be_installed(shell, needy):
    (needy / "requirements.txt").write_text("--no-index\n./no-such-wheel-1.0-py3-none-any.whl\n")
    done = shell.run("ng_run", configs("a.yaml"), "+head_server.port=0")
    assert done.returncode == 2
    assert f"{needy / 'requirements.txt'} cannot be installed:" in done.stderr
    assert "no-such-wheel" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_virtual_environment_without_requirements(shell):
    write(
        shell.folder, {"where.py": WHERE, "a.yaml": "here:\n  resources_servers: {where.py:Where: {isolation: venv}}\n"}
    )
    done = shell.run("ng_run", configs("a.yaml"), "+head_server.port=0")
    assert done.returncode == 2
    assert "isolation: venv needs a requirements.txt with something in it" in done.stderr
