"""From instances to a worker's live parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollmill.collection.worker import Job
from rollmill.config import Instance
from rollmill.launch import Setup, assemble
from rollmill.profiling.profile import Profile
from rollmill.types import Slot, Task

JUDGED = """
import rollmill as rm
from rollmill.model import Conversation

class Judged(rm.Environment):
    @rm.reward
    async def liked(self) -> bool:
        return (await self.models["judge"].reply(Conversation(self.trajectory.prompt))).text == "good"
"""


def reference(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "name": name}


def instance(name: str, kind: Any, implementation: str, **fields: Any) -> Instance:
    return Instance(name=name, kind=kind, implementation=implementation, fields=fields)


async def test_calls_of_a_judge_are_verification_in_a_profile(tmp_path: Path):
    (tmp_path / "judged.py").write_text(JUDGED)
    parts = {
        "resources_server": reference("resources_servers", "judged"),
        "model_server": reference("responses_api_models", "policy"),
    }
    critic = reference("responses_api_models", "critic")
    instances = [
        instance("policy", "responses_api_models", "scripted_model", lines=["an answer"]),
        instance("critic", "responses_api_models", "scripted_model", lines=["good"]),
        instance("judged", "resources_servers", f"{tmp_path / 'judged.py'}:Judged", judge=critic),
        instance("agent", "responses_api_agents", "simple_agent", **parts),
    ]
    profile = Profile()
    async with assemble(Setup({one.name: one for one in instances}, agents=("agent",)), profile) as worker:
        task = Task.of("?")
        played = await worker.play(Job(Slot("agent", task.identity), task))
    assert played.entry.reward == 1
    stages = profile.spans.stages
    assert {name: one.count for name, one in stages["model"].items()} == {"policy": 1}
    assert {name: one.count for name, one in stages["queue"].items()} == {"permit": 1}
    assert stages["verify"].keys() == {"", "liked"}
