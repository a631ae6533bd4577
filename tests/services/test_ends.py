"""However the end comes, nothing is left: no process, no port; and what dies on its own is there again."""

import json
import os
import shlex
import signal
import subprocess

import pytest
from tests.services.conftest import MODEL, WAIT, Running, cmdline, configs, curl, listens, of, post, soon, write

pytestmark = pytest.mark.slow

WHOLE = (configs(of("shop"), MODEL),)
APART = (*WHOLE, "+shop.resources_servers.shop.isolation=process", "+shop.resources_servers.shop.num_workers=2")
ORDER = {"responses_create_params": {"input": "x"}, "stock": {"apple": 3}, "want": {"apple": 2}}

# A world that starts a program of its own, which outlives everybody who does not end it.
STARTS = """\
import subprocess
import rollmill as rm

class Starts(rm.Environment):
    async def setup(self) -> None:
        self.child = subprocess.Popen(["sleep", "600"])

    async def close(self) -> None:
        self.child.kill()
        self.child.wait()

    @rm.tool
    async def wait(self) -> str:
        "Wait."
        import asyncio
        await asyncio.sleep(600)

    def verify(self, task, response):
        return 1
"""
STUBBORN = """\
import signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
import subprocess, sys
subprocess.Popen(["sleep", "600"], start_new_session=False)
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *_): pass
http.server.HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"""

SAYS = """\
import os
import rollmill as rm
print('hello \\x1b[31mred\\x07')
print('x' * 1_000_000)
for _ in range(1000):
    print('y' * 1000)
os.write(2, b'\\xff\\n')

class Says(rm.Environment):
    pass
"""


def children(running: Running) -> list[int]:
    """What worlds have started."""
    return [pid for pid in running.processes() if b"sleep 600" in cmdline(pid)]


def starting(run, shell, *words: str) -> Running:
    """Services of a world that starts programs, with one that a client has begun."""
    write(shell.folder, {"starts.py": STARTS, "a.yaml": "starts:\n  resources_servers: {starts.py:Starts: {}}\n"})
    running = run("ng_run", configs("a.yaml"), *words)
    assert post(f"{running.url('starts')}/seed_session", ORDER).status == 200
    assert children(running)
    return running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end(run, number):
    running = run("ng_run", *APART)
    assert len(running.programs()) == 3
    assert running.end(number) == 0
    assert running.said[-1] == "Stopped 3 services.\n"
    assert running.complained == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_worlds_have_started_ends_too(run, shell, number):
    running = starting(run, shell)
    assert running.end(number) == (-9 if number == signal.SIGKILL else 0)


def test_ended_while_a_tool_works(run, shell):
    running = starting(run, shell)
    url = running.url("starts")
    cookie = post(f"{url}/seed_session", ORDER).headers["set-cookie"].partition(";")[0]
    asking = subprocess.Popen(
        ["curl", "--silent", "--noproxy", "*", "-d", "{}", "-b", cookie, f"{url}/wait"], stdout=subprocess.PIPE
    )
    WAIT.wait(0.3)
    assert running.end() == 0
    assert b'"code":"stopping"' in asking.communicate(timeout=20)[0]
    assert "Traceback" not in "".join(running.complained)


def test_a_client_that_never_comes_back_leaves_nothing(run, shell):
    running = starting(run, shell, "+session_idle_s=0.3")
    soon(lambda: not children(running))
    assert running.end() == 0


@pytest.mark.parametrize("fields", [{}, {"isolation": "process"}])
def test_a_client_that_goes_away_in_the_middle_of_a_rollout_leaves_nothing(run, shell, fields):
    agent = {
        "resources_server": {"type": "resources_servers", "name": "starts"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    call = {"type": "function_call", "name": "wait", "arguments": "{}", "call_id": "c"}
    instances = {
        "starts": {"resources_servers": {"starts.py:Starts": fields}},
        "agent": {"responses_api_agents": {"simple_agent": agent}},
        "policy_model": {"responses_api_models": {"scripted_model": {"lines": [call]}}},
    }
    write(shell.folder, {"starts.py": STARTS, "a.yaml": json.dumps(instances)})
    running = run("ng_run", configs("a.yaml"))
    url = f"{running.url('agent')}/run"
    asking = subprocess.Popen(["curl", "--silent", "--noproxy", "*", "-d", json.dumps(ORDER), url])
    soon(lambda: bool(children(running)))
    asking.kill()
    asking.wait()
    soon(lambda: not children(running))
    assert running.end() == 0


def test_killed(run):
    assert run("ng_run", *APART).end(signal.SIGKILL) == -signal.SIGKILL


def test_killed_with_programs_that_end_for_nobody(run, shell):
    write(
        shell.folder, {"resources_servers/mine/app.py": STUBBORN, "a.yaml": "mine:\n  resources_servers: {mine: {}}\n"}
    )
    for number in (signal.SIGKILL, signal.SIGINT):
        running = run("ng_run", configs("a.yaml"))
        assert any(b"sleep 600" in cmdline(pid) for pid in running.processes())
        running.end(number)


def test_interrupted_before_anything_is_ready(run):
    running = run("ng_run", *APART, wait="")
    running.until(lambda: len(running.processes()) >= 2)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(20) in (0, 130)
    running.join()
    running.gone()


def test_killed_before_anything_is_ready(run):
    running = run("ng_run", *APART, wait="")
    running.until(lambda: len(running.processes()) >= 2)
    running.process.kill()
    running.process.wait(20)
    running.gone()


def test_in_the_background_of_a_shell_that_ignores_ctrl_c(run):
    # So a script's `ng_run … &` begins: with SIGINT ignored.
    words = (*("sh", "-c", 'trap "" INT; exec "$0" "$@"', "ng_run"), *WHOLE)
    running = run(*words)
    assert running.end(signal.SIGINT) == 0


def test_a_script_that_starts_it_and_ends_it(shell, run):
    script = (
        f"ng_run {' '.join(map(shlex.quote, WHOLE))} +head_server.port=$PORT > log 2>&1 &\n"
        "pid=$!\n"
        "until grep -q 'servers ready' log; do sleep 0.1; done\n"
        "curl -s --noproxy '*' http://127.0.0.1:$PORT/ && kill -INT $pid && wait $pid && echo ended\n"
    )
    running = run("sh", "-c", f'PORT="${{0#*=}}"; {script}', wait="ended")
    assert running.said[-1] == '{"status":"ok"}ended\n'
    running.process.wait(20)
    running.gone()


def test_a_terminal_that_closes_ends_nothing(run):
    running = run("ng_run", *WHOLE)
    os.killpg(running.process.pid, signal.SIGHUP)
    WAIT.wait(0.2)
    assert curl(f"{running.url('shop')}/").status == 200
    assert running.end() == 0


def test_nobody_reads_what_it_says(run):
    running = run("sh", "-c", '"$0" "$@" | head -n 1', "ng_run", *WHOLE, wait="")
    running.until(lambda: bool(running.said) and listens(running.port))
    [command] = [pid for pid in running.processes() if b"ng_run" in cmdline(pid) and b"head -n" not in cmdline(pid)]
    running.until(lambda: running.instances()["shop"]["state"] == "ready")
    assert curl(f"{running.url('shop')}/").status == 200
    os.kill(command, signal.SIGINT)
    running.process.wait(20)
    running.gone()


# A service that dies.


def test_a_service_that_is_killed_is_there_again_on_its_port(run):
    running = run("ng_run", *WHOLE)
    before = running.instances()
    os.kill(before["shop"]["pid"], signal.SIGKILL)
    running.until(lambda: any("shared is up again" in line for line in running.complained))
    after = running.instances()
    assert after["shop"]["pid"] != before["shop"]["pid"]
    assert after["shop"]["url"] == before["shop"]["url"]
    assert post(f"{running.url('shop')}/seed_session", ORDER).status == 200
    assert running.complained[0] == "shared has ended (killed by signal 9), without a word\n"
    assert running.end() == 0


def test_what_a_killed_service_had_started_ends_with_it(run, shell):
    running = starting(run, shell)
    [before] = children(running)
    os.kill(running.instances()["starts"]["pid"], signal.SIGKILL)
    running.until(lambda: any("is up again" in line for line in running.complained))
    assert before not in running.processes()
    assert running.end() == 0


def test_a_call_meets_a_service_that_restarts_and_waits_for_it(run):
    running = run("ng_run", *APART)
    agent = running.url("shop_simple_agent")
    for pid in running.programs():
        if pid != running.instances()["shop_simple_agent"]["pid"]:
            os.kill(pid, signal.SIGKILL)
    row = post(f"{agent}/run", ORDER)
    assert (row.status, row.json["response"]["output_text"]) == (200, "ok")
    assert running.end() == 0


def test_a_service_that_dies_again_and_again_ends_them_all(run, shell):
    write(shell.folder, {"starts.py": STARTS, "a.yaml": "starts:\n  resources_servers: {starts.py:Starts: {}}\n"})
    running = run("ng_run", configs("a.yaml"))
    killed = set()
    while running.process.poll() is None:
        found = running.programs() - killed
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        killed |= found
        WAIT.wait(0.02)
    running.join()
    assert running.process.returncode == 1
    assert len(killed) == 4
    assert running.complained[-1] == "rollmill: services have ended 4 times within 60 s, shared last\n"
    running.gone()


def test_a_service_that_dies_ends_them_all_where_that_is_wanted(run):
    running = run("ng_run", *APART, "+when_a_service_dies=stop")
    os.kill(running.instances()["shop"]["pid"], signal.SIGKILL)
    assert running.process.wait(20) == 1
    running.join()
    assert "has ended, and when_a_service_dies is stop" in running.complained[-1]
    running.gone()


def test_what_a_service_prints_is_said_under_its_name_and_kept(run, shell):
    write(shell.folder, {"says.py": SAYS, "a.yaml": "says:\n  resources_servers: {says.py:Says: {}}\n"})
    running = run("ng_run", configs("a.yaml"), "+nemo_gym_log_dir=logs")
    running.until(lambda: any("hello" in line for line in running.complained))
    assert sum(f"(shared) {'y' * 1000}\n" == line for line in running.complained) == 1000
    assert running.end() == 0
    text = "".join(running.complained)
    assert "(shared) hello \\x1b[31mred\\x07\n" in text
    assert "\x1b" not in text
    assert "hello" in (shell.folder / "logs" / "shared.log").read_text()
