"""Workers that play the tempered world, and jobs for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.conftest import ModelServer
from tests.engines.worlds import Tempered

from rollmill.collection.options import Limits
from rollmill.collection.worker import Job
from rollmill.config import Instance
from rollmill.launch import Setup
from rollmill.types import Slot, read_task

HERE = Path(__file__).parent

if sys.platform != "linux":
    # They look into /proc.
    collect_ignore = ["test_processes.py"]


@pytest.fixture
def setup(tmp_path: Path, serve_model: Callable[..., ModelServer]) -> Callable[..., Setup]:
    """What workers are told: the tempered world, and a model that answers so."""

    def make(answer: object = "yes", *, at_once: int = 0, **options: object) -> Setup:
        server = serve_model(answer)
        place = {
            "resources_server": {"type": "resources_servers", "name": "world"},
            "model_server": {"type": "responses_api_models", "name": "policy"},
        }
        model = {"openai_base_url": server.url, "openai_api_key": "key", "openai_model": "mock"}
        instances = [
            Instance(name="policy", kind="responses_api_models", implementation="openai_model", fields=model),
            Instance(
                name="world",
                kind="resources_servers",
                implementation=f"{HERE / 'worlds.py'}:World",
                fields={"folder": str(tmp_path)},
            ),
            Instance(name="agent", kind="responses_api_agents", implementation="simple_agent", fields=place),
        ]
        limits = Limits(environments={"world": at_once} if at_once else {})
        named = {one.name: one for one in instances}
        return Setup(named, **({"agents": ("agent",), "run": "r1", "places": 4, "limits": limits} | options))

    return make


def job(number: int, temper: str = "kind", **more: str) -> Job:
    """One attempt at a task; `more` are fields of its row, as JSON."""
    asked = msgspec.json.encode({"input": f"Errand {number}"})
    row = {"responses_create_params": asked, "number": b"%d" % number, "temper": msgspec.json.encode(temper)}
    fields = {name: msgspec.Raw(content) for name, content in (row | more).items()}
    task = read_task(msgspec.json.encode(fields), Tempered)
    return Job(Slot("agent", task.identity, task_index=number), task)
