"""starter, as it is used: `rollmill test starter` runs this."""

from pathlib import Path

from resources_servers.starter.app import Starter, StarterTask

import rollmill as rm
from rollmill.testing import check_environment

EXAMPLES = rm.from_jsonl(Path(__file__).parents[1] / "data" / "example.jsonl", StarterTask)
TASK = StarterTask.of("What is in the red box?", boxes={"red": "key", "blue": "coin"}, wanted="red")


async def reward_of(*lines: object) -> float:
    rollout = await rm.play(TASK, Starter, rm.ToolAgent(), rm.Scripted(*lines))
    return rollout.reward.value


async def test_looking_and_telling_earns_the_reward() -> None:
    assert await reward_of(rm.call("open_box", color="red"), "It is a key.") == 1


async def test_a_guess_earns_nothing() -> None:
    assert await reward_of("It is a key.") == 0


async def test_it_keeps_the_contract_of_an_environment() -> None:
    await check_environment(
        Starter,
        EXAMPLES,
        gold=lambda task: [rm.call("open_box", color=task.wanted), f"It is a {task.boxes[task.wanted]}."],
        wrong=lambda task: [["A key."], [rm.call("open_box", color=task.wanted), " ".join(task.boxes.values())]],
    )
