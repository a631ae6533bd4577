"""A folder in which the commands of the documents run as they are written: `env.yaml` says what they leave out."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Self

import pytest
import yaml
from tests.conftest import Shell

PATIENT = '''
import asyncio
from pathlib import Path

import rollmill as rm


class Row(rm.Task):
    answer: str = ""
    delay: float = 0.0
    gate: str = ""


class Patient(rm.Environment[Row]):
    """Takes as long as the row says, so that rollouts end in another order than that of the input.

    A row with a gate waits until there is a file of that name.
    """

    async def setup(self):
        await asyncio.sleep(self.task.delay)
        while self.task.gate and not Path(self.task.gate).exists():
            await asyncio.sleep(0.02)

    @rm.reward
    def right(self):
        return self.trajectory.answer == self.task.answer
'''

SCRIPTED = {"scripted_model": {"lines": ["yes"]}}


def installed(program: str) -> bool:
    return shutil.which(program) is not None


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not installed(program), reason=f"{program} is not installed (Debian: apt-get install {program})"
    )


def row(number: int) -> dict:
    """Every fifth is slow, and every third has no right answer."""
    return {
        "responses_create_params": {"input": f"Question {number}"},
        "number": number,
        "answer": "no" if number % 3 == 0 else "yes",
        "delay": 0.6 if number % 5 == 0 else 0.05,
    }


def agent(environment: str, **fields: object) -> dict:
    """An agent in that environment, with the policy."""
    return {
        "responses_api_agents": {
            "simple_agent": {
                "resources_server": {"type": "resources_servers", "name": environment},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
                **fields,
            }
        }
    }


def served_at(url: str) -> dict:
    """A policy that speaks OpenAI's Responses API."""
    return {"openai_model": {"openai_base_url": url, "openai_api_key": "none", "openai_model": "served"}}


class Place(Shell):
    """A scratch folder with an environment, `my_agent` in it, and the policy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.env["LC_ALL"] = "C.UTF-8"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "patient.py").write_text(PATIENT)
        self.configure()

    def configure(self, environment: str = "patient.py:Patient", policy: dict = SCRIPTED, **more: object) -> None:
        """Write `env.yaml` anew. Its head server's port is one on which nobody else's services answer."""
        tree = {
            "policy_model": {"responses_api_models": policy},
            "world": {"resources_servers": {f"{self.folder}/{environment}": {}}},
            "my_agent": agent("world"),
            "head_server": {"port": self.port},
        }
        given = {key: value for key, value in (tree | more).items() if value is not None}
        (self.folder / "env.yaml").write_text(yaml.safe_dump(given))

    def bash(self, script: str) -> subprocess.Popen:
        return self.start("bash", "-uo", "pipefail", "-c", script, start_new_session=True)

    def ran(self, script: str) -> subprocess.CompletedProcess:
        with self.bash(script) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        return subprocess.CompletedProcess(script, process.returncode, out, err)

    def said(self, script: str) -> str:
        """What it writes to standard output."""
        return self.ran(script).stdout

    def killed(self, script: str, output: str, *, rows: int) -> None:
        """Run it, and kill all of it as soon as the output has so many rows."""
        with self.bash(script) as process:
            wait_for(lambda: self.lines(output) >= rows or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            os.killpg(process.pid, signal.SIGKILL)

    def inside(self, folder: str) -> Self:
        """The same, in a folder of this one."""
        deeper = copy(self)
        deeper.folder = self.folder / folder
        return deeper

    def numbers(self, name: str) -> list[int]:
        """Which rows of the input an output has."""
        return sorted(row["number"] for row in self.rows(name))

    def lines(self, name: str) -> int:
        path = self.folder / name
        return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it has not happened in a minute"
        time.sleep(0.02)
