"""`rollmill version` and `ng_version` as processes."""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

import rollmill


@pytest.mark.parametrize("command", ["ng_version +json=true", "nemo_gym_version json=true", "rollmill version --json"])
def test_the_keys_that_scripts_read(shell, command):
    done = shell.run(*command.split())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rollmill"] == rollmill.__version__
    assert found["nemo_gym"] == "0.5.1"
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert Path(found["python_path"]).exists()
    assert Path(found["installation_path"]) == Path(rollmill.__file__).parent
    assert found["dependencies"]["msgspec"] == metadata.version("msgspec")
    assert {"xllamacpp", "datasets"} < found["dependencies"].keys()
    assert "pytest" not in found["dependencies"]
    assert set(found["system"]) == {"os", "platform", "architecture", "processor", "cpus", "memory_gb"}
    assert found["system"]["memory_gb"] > 0


def test_for_people(shell):
    done = shell.run("rollmill", "version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"rollmill {rollmill.__version__}, which implements the contract of NeMo Gym 0.5.1\n")
    assert shell.run("ng_version").stdout == done.stdout


def test_a_key_that_it_does_not_have_is_refused(shell):
    done = shell.run("ng_version", "+jsn=true")
    assert (done.returncode, done.stderr) == (2, 'rollmill: jsn: unknown key; did you mean "json"?\n')
    assert shell.run("ng_version", "+verbose=true").returncode == 0, "it means something to other commands"
