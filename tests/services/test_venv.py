"""A server with requirements of its own: they are in its virtual environment, and this package is, too."""

import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

WHEEL = "vendored-1.0-py3-none-any.whl"
APP = '''
import vendored

import rollmill as rm


class Needy(rm.Environment):
    """Judges by what is installed for it alone."""

    verification = "stateless"

    def verify(self, task, response):
        return {"reward": vendored.judge(response.output_text), "version": vendored.VERSION}
'''
CONFIGURATION = """\
needy: {resources_servers: {needy: {entrypoint: app.py, domain: other}}}
needy_simple_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: needy}
      model_server: {type: responses_api_models, name: policy_model}
policy_model: {responses_api_models: {scripted_model: {lines: [yes please]}}}
"""
COLLECT = (
    *("ng_collect_rollouts", "+config_paths=[needy.yaml]", "+input_jsonl_fpath=tasks.jsonl"),
    "+output_jsonl_fpath=a.jsonl",
)


def write_wheel(folder: Path) -> None:
    """By hand: nothing is built, and no index is asked."""
    files = {
        "vendored.py": "VERSION = 7\n\n\ndef judge(text):\n    return 1.0 if 'please' in text else 0.0\n",
        "vendored-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vendored\nVersion: 1.0\n",
        "vendored-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\n",
    }
    names = [*files, "vendored-1.0.dist-info/RECORD"]
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(names[-1], "".join(f"{name},,\n" for name in names))


@pytest.fixture
def needy(shell):
    folder = shell.folder / "resources_servers/needy"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "requirements.txt").write_text(f"-e nemo-gym[dev] @ ../../\n# its own\n./{WHEEL}\n")
    write_wheel(folder)
    (shell.folder / "needy.yaml").write_text(CONFIGURATION)
    shell.write("tasks.jsonl", *({"responses_create_params": {"input": str(n)}} for n in range(3)))
    return shell


def test_requirements_are_installed_once_for_the_server_alone(needy):
    done = needy.run(*COLLECT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Installing" in done.stderr
    assert [(row["reward"], row["version"]) for row in needy.rows("a.jsonl")] == [(1.0, 7)] * 3
    again = needy.run(*COLLECT, "+num_repeats=2", timeout=300)
    assert again.returncode == 0, again.stderr
    assert "Installing" not in again.stderr
    assert len(needy.rows("a.jsonl")) == 6


def test_what_cannot_be_installed_is_said(needy):
    (needy.folder / "resources_servers/needy/requirements.txt").write_text("./missing-1.0-py3-none-any.whl\n")
    done = needy.run(*COLLECT, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "requirements.txt cannot be installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_venv_needs_requirements(needy):
    (needy.folder / "resources_servers/needy/requirements.txt").write_text("nemo-gym\n")
    done = needy.run(*COLLECT, "+needy.resources_servers.needy.isolation=venv")
    assert done.returncode == 2
    assert "isolation: venv needs a requirements.txt" in done.stderr
