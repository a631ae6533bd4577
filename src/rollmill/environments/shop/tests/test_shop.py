"""The shop, as it is used."""

from pathlib import Path

import pytest

import rollmill as rm
from rollmill.environments.shop import Shop
from rollmill.environments.shop.environment import Order
from rollmill.testing import check_environment

EXAMPLES = rm.from_jsonl(Path(__file__).parents[1] / "data" / "example.jsonl", Order)
TWO_APPLES = Order.of("Two apples, please.", stock={"apple": 3, "pear": 1}, want={"apple": 2})


async def play(*lines: object, task: Order = TWO_APPLES) -> rm.Rollout:
    return await rm.play(task, Shop, rm.ToolAgent(), rm.Scripted(*lines, "Done."))


def take(call_id: str = "call_1", **arguments: object) -> rm.FunctionCall:
    return rm.call("take", call_id, **arguments)


def put_back(call_id: str = "call_2", **arguments: object) -> rm.FunctionCall:
    return rm.call("put_back", call_id, **arguments)


def fill(task: Order) -> list[rm.FunctionCall]:
    return [take(f"call_{n}", item=item, count=count) for n, (item, count) in enumerate(task.want.items())]


async def test_the_right_cart_earns_full_marks_and_verifies_again_by_replay() -> None:
    for task in EXAMPLES:
        rollout = await play(fill(task), task=task)
        assert rollout.reward.value == pytest.approx(1.2)
        assert rollout.reward.parts == {"right_cart": 1.0, "no_waste": 0.2}
        assert rollout.reward.metrics == {"items_taken": float(sum(task.want.values()))}
        assert await rm.verify_again(rollout, Shop) == rollout.reward


async def test_what_was_taken_too_much_can_be_put_back() -> None:
    rollout = await play(take(item="apple", count=3), put_back(item="apple"))
    assert [item.text for item in rollout.response.output if isinstance(item, rm.FunctionCallOutput)] == [
        "cart: {'apple': 3}",
        "cart: {'apple': 2}",
    ]
    assert rollout.reward.value == pytest.approx(1.2)


async def test_what_was_put_back_entirely_is_no_longer_in_the_cart() -> None:
    rollout = await play([take("a", item="apple", count=2), take("b", item="pear")], put_back(item="pear"))
    assert rollout.reward.parts["right_cart"] == 1


@pytest.mark.parametrize(
    ("failing", "answer"),
    [
        (take(item="apple", count=4), "not enough apple"),
        (take(item="plum"), "not enough plum"),
        (put_back(item="apple"), "not enough apple"),
        (take(item="apple", count="2"), "$.count"),
        (take(item="apple", count=0), "$.count"),
        (take(item="apple", count=-1), "$.count"),
        (take(item="apple", number=2), "number"),
        (rm.call("buy", item="apple"), "Unknown tool: buy"),
    ],
)
async def test_a_failed_call_changes_nothing_and_costs_the_smaller_part(failing: rm.FunctionCall, answer: str) -> None:
    rollout = await play(failing, take("call_9", item="apple", count=2))
    assert answer in rollout.response.output[1].text
    assert rollout.reward.parts == {"right_cart": 1.0, "no_waste": 0.0}
    assert await rm.verify_again(rollout, Shop) == rollout.reward


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [take(item="apple")],
        [take(item="apple", count=3)],
        [[take("a", item="apple", count=2), take("b", item="pear")]],
        ["The cart now holds two apples."],
    ],
)
async def test_a_wrong_cart_earns_nothing_however_little_was_wasted(lines: list[object]) -> None:
    assert (await play(*lines)).reward.parts == {"right_cart": 0.0, "no_waste": 0.0}


async def test_one_rollout_does_not_see_the_cart_of_another() -> None:
    assert (await play(take(item="apple", count=2))).reward == (await play(take(item="apple", count=2))).reward
    assert TWO_APPLES.stock == {"apple": 3, "pear": 1}


async def test_the_rows_carry_no_tools_and_are_asked_with_those_of_the_shop() -> None:
    for task in EXAMPLES:
        assert "tools" not in task.params
        rollout = await play(task=task)
        offered = rollout.task["responses_create_params"]["tools"]
        assert [tool["name"] for tool in offered] == ["take", "put_back"]
        assert offered[0]["parameters"]["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 1}


async def test_it_keeps_the_contract_of_an_environment() -> None:
    await check_environment(
        Shop,
        EXAMPLES,
        full=1.2,
        gold=lambda task: [fill(task), "Done."],
        wrong=lambda task: [["Done."], [fill(task), fill(task), "Done."], [take(item="gold"), fill(task), "Done."]],
    )
