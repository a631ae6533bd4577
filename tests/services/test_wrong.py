"""What is wrong is said in one line, with exit code 2, before anything is started."""

import re
import socket
import threading

import pytest
from tests.services.conftest import MODEL, WAIT, configs, of, write

pytestmark = pytest.mark.slow

AGENT = """\
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: {environment}}}
      model_server: {{type: responses_api_models, name: {model}}}
"""
WHOLE = (configs(of("shop"), MODEL),)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def refused(shell, port):
    """The one line with which a command refuses to begin."""

    def run(*words: str, command: str = "ng_run") -> str:
        head = () if any("head_server" in word for word in words) else (f"+head_server.port={port}",)
        done = shell.run(command, *words, *head, timeout=30)
        assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("rollmill: ")
        return done.stderr.removeprefix("rollmill: ").removesuffix("\n")

    return run


def one_line(text: str) -> str:
    assert "\n" not in text
    return text


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


# Ports and hosts.


def test_a_port_that_is_in_use(refused, taken):
    said = one_line(refused(*WHOLE, f"+shop.resources_servers.shop.port={taken}"))
    assert said == f"shop.resources_servers.shop.port: port {taken} of 127.0.0.1 is in use; name another, or none"


def test_the_heads_port_that_is_in_use(refused, taken):
    said = one_line(refused(*WHOLE, f"+head_server.port={taken}"))
    assert said.startswith(f"head_server.port: port {taken} of 127.0.0.1 is in use, perhaps by another ng_run")
    assert "+head_server.port=…" in said


def test_two_instances_on_one_port(refused, port):
    words = (
        f"+shop.resources_servers.shop.port={port}",
        f"+policy_model.responses_api_models.scripted_model.port={port}",
    )
    assert f"port {port} of 127.0.0.1 is in use" in one_line(refused(*WHOLE, *words, "+head_server.port=0"))


def test_a_range_without_a_free_port(refused, taken):
    words = (f"+port_range_low={taken}", f"+port_range_high={taken}")
    assert one_line(refused(*WHOLE, *words)) == f"no port from {taken} to {taken} is free: widen the range"
    assert "port_range_high" in one_line(refused(*WHOLE, "+port_range_low=20000", "+port_range_high=10000"))


@pytest.mark.parametrize("port", [70000, -1, "x"])
def test_a_port_that_is_none(refused, port):
    assert "port" in one_line(refused(*WHOLE, f"+shop.resources_servers.shop.port={port}"))
    assert "port" in one_line(refused(*WHOLE, f"+head_server.port={port}"))


def test_a_host_that_is_not_this_machine(refused):
    said = one_line(refused(*WHOLE, "+shop.resources_servers.shop.host=192.0.2.1", "+access_token=token-of-tests"))
    assert said.startswith("shop.resources_servers.shop.host: 192.0.2.1:")


def test_a_host_that_is_no_name(refused):
    said = one_line(refused(*WHOLE, "+default_host=no such host", "+access_token=token-of-tests"))
    assert "no such host" in said


@pytest.mark.parametrize("key", ["default_host", "shop.resources_servers.shop.host", "head_server.host"])
@pytest.mark.parametrize("host", ["0.0.0.0", "'::'"])
def test_a_host_for_everybody_without_a_token(refused, key, host):
    said = one_line(refused(*WHOLE, f"+{key}={host}"))
    assert "so it needs a token: set access_token" in said


def test_this_machines_address_without_a_token(refused):
    address = socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        pytest.skip("this machine's name stands for loopback")
    assert "needs a token" in one_line(refused(*WHOLE, "+use_absolute_ip=true"))


# Names.


def test_nothing_to_serve(refused):
    assert one_line(refused()).startswith("nothing to serve: name an environment")


def test_an_agent_whose_model_or_environment_does_not_exist(refused, shell):
    for environment, model, said in (
        ("shoop", "policy_model", 'resources_servers has no instance "shoop"; did you mean "shop"?'),
        ("shop", "policy_modell", 'responses_api_models has no instance "policy_modell"; did you mean "policy_model"?'),
        ("policy_model", "policy_model", '"policy_model" is one of responses_api_models, not of resources_servers'),
    ):
        write(shell.folder, {"agent.yaml": "my_agent:\n" + AGENT.format(environment=environment, model=model)})
        assert said in one_line(refused(configs(of("shop"), MODEL, "agent.yaml")))


def test_a_configuration_without_its_model(refused):
    assert 'has no instance "policy_model"' in one_line(refused(configs(of("shop"))))


def test_two_instances_of_one_name(refused, shell):
    write(
        shell.folder,
        {"a.yaml": "shop:\n  resources_servers: {shop: {}}\n  responses_api_models: {scripted_model: {}}\n"},
    )
    assert "expected one server type" in one_line(refused(configs("a.yaml")))
    write(shell.folder, {"a.yaml": "shop:\n  resources_servers: {shop: {}, mcqa: {}}\n"})
    assert "expected one implementation, got mcqa and shop" in one_line(refused(configs("a.yaml")))
    write(shell.folder, {"a.yaml": "shop:\n  resources_servers: {shop: {}}\nshop:\n  resources_servers: {mcqa: {}}\n"})
    assert "shop" in one_line(refused(configs("a.yaml")))


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("resources_servers", "shopp", "unknown environment 'shopp'; did you mean \"shop\"?"),
        ("responses_api_models", "scripted", "unknown model backend 'scripted'"),
        ("responses_api_agents", "simpel_agent", "unknown agent 'simpel_agent'; did you mean \"simple_agent\"?"),
    ],
)
def test_an_implementation_that_there_is_not(refused, shell, kind, name, said):
    models = "model_server: {type: responses_api_models, name: policy_model}"
    fields = f"{{resources_server: {{type: resources_servers, name: shop}}, {models}}}"
    write(shell.folder, {"a.yaml": f"mine:\n  {kind}: {{{name}: {fields if 'agent' in kind else '{}'}}}\n"})
    assert said in one_line(refused(configs(of("shop"), MODEL, "a.yaml")))


def test_a_field_that_an_implementation_does_not_know(refused):
    said = one_line(refused(*WHOLE, "+policy_model.responses_api_models.scripted_model.line=x"))
    assert said.startswith("policy_model.responses_api_models.scripted_model")
    assert "line" in said


def test_a_key_that_serving_does_not_know(refused):
    assert "when_a_service_dies" in one_line(refused(*WHOLE, "+when_a_service_dies=ignore"))
    assert "num_workers" in one_line(refused(*WHOLE, "+num_workers=0"))


def test_a_file_that_there_is_not(refused):
    assert 'config file "nowhere.yaml" not found' in one_line(refused(configs("nowhere.yaml")))


# Code.


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import rollmill as rm\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import rollmill as rm\n1/0\n", r"ZeroDivisionError: division by zero \(app.py:2"),
        ("import rollmill as rm\ndef broken(:\n", r"SyntaxError: invalid syntax \(app.py, line 2\)"),
        ("import rollmill as rm\nraise SystemExit('leaves')\n", "leaves"),
        ("import rollmill as rm\n", "has not exactly one environment"),
    ],
)
def test_an_entrypoint_that_fails_to_import(refused, shell, code, said):
    write(shell.folder, {"resources_servers/mine/app.py": code, "a.yaml": "mine:\n  resources_servers: {mine: {}}\n"})
    told = refused(configs("a.yaml"))
    assert len(told.splitlines()) <= 6
    assert "app.py" in told
    assert re.search(said, told), told


def test_an_entrypoint_that_there_is_not(refused, shell):
    write(shell.folder, {"resources_servers/mine/other.py": "", "a.yaml": "mine:\n  resources_servers: {mine: {}}\n"})
    assert one_line(refused(configs("a.yaml"))).endswith("resources_servers/mine/app.py: there is no such entrypoint")


def test_a_program_that_ends_at_once(shell, port):
    program = "import sys\nprint('no database')\nsys.exit(7)\n"
    write(
        shell.folder, {"resources_servers/mine/app.py": program, "a.yaml": "mine:\n  resources_servers: {mine: {}}\n"}
    )
    done = shell.run("ng_run", configs("a.yaml"), f"+head_server.port={port}", timeout=30)
    assert done.returncode == 1
    assert "mine has ended (exit code 7); the end of its log:\n  no database" in done.stderr


def test_a_program_that_never_answers(shell, port):
    program = "import time\ntime.sleep(600)\n"
    write(
        shell.folder, {"resources_servers/mine/app.py": program, "a.yaml": "mine:\n  resources_servers: {mine: {}}\n"}
    )
    done = shell.run("ng_run", configs("a.yaml"), f"+head_server.port={port}", "+start_s=0.5", timeout=30)
    assert done.returncode == 1
    assert "mine did not answer at http://127.0.0.1:" in done.stderr


def test_a_program_of_no_language_that_is_known(refused, shell):
    files = {
        "resources_servers/mine/app.xyz": "",
        "a.yaml": "mine:\n  resources_servers: {mine: {entrypoint: app.xyz}}\n",
    }
    write(shell.folder, files)
    assert "app.xyz is not executable, and of no language known here" in one_line(refused(configs("a.yaml")))


# A dry run finds the same.


def test_a_dry_run(shell, refused, port):
    done = shell.run("ng_run", *WHOLE, "+dry_run=true", f"+head_server.port={port}", timeout=30)
    assert (done.returncode, done.stdout) == (0, "Dry run: all 3 instances can be made.\n")
    write(
        shell.folder,
        {
            "resources_servers/mine/app.py": "import rollmill\n1/0\n",
            "a.yaml": "mine:\n  resources_servers: {mine: {}}\n",
        },
    )
    assert "ZeroDivisionError" in refused(configs("a.yaml"), "+dry_run=true")


# Collections that look for services.


def collect(port: int) -> tuple[str, ...]:
    return (
        "+agent_name=a",
        "+input_jsonl_fpath=in.jsonl",
        "+output_jsonl_fpath=out.jsonl",
        f"+head_server.port={port}",
    )


def test_a_head_that_is_not_there_is_said_at_once_with_what_to_run(refused, shell, port):
    shell.write("in.jsonl", {"responses_create_params": {"input": "x"}})
    said = one_line(refused(*collect(port), command="ng_collect_rollouts"))
    assert f"127.0.0.1:{port}" in said
    assert "ng_run" in said


def test_a_head_that_says_nothing_is_not_waited_for(refused, shell):
    shell.write("in.jsonl", {"responses_create_params": {"input": "x"}})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = one_line(refused(*collect(silent.getsockname()[1]), command="ng_collect_rollouts"))
    assert "no head server answers" in said


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html",
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_head_that_is_something_else(refused, shell, answer):
    shell.write("in.jsonl", {"responses_create_params": {"input": "x"}})
    with speaking(answer) as port:
        assert f"127.0.0.1:{port}" in one_line(refused(*collect(port), command="ng_collect_rollouts"))


def test_an_agent_that_no_service_has(shell, run):
    shell.write("in.jsonl", {"responses_create_params": {"input": "x"}, "stock": {}, "want": {}})
    running = run("ng_run", *WHOLE)
    words = ("+agent_name=shop_simple_agnet", *collect(running.port)[1:])
    done = shell.run("ng_collect_rollouts", *words)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert "unknown agent 'shop_simple_agnet'; did you mean \"shop_simple_agent\"?" in said


class speaking:  # noqa: N801
    """A server that says the same to everybody."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._serve, daemon=True).start()
        return self._listening.getsockname()[1]

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(self._answer)
                WAIT.wait(0.05)
