"""What an author writes, and what the class makes of it."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import pytest

import rollmill as rm
from rollmill.environment import opened
from rollmill.types import encode

# The design's example, to the letter.
# fmt: off


class Order(rm.Task):
    stock: dict[str, int]
    want: dict[str, int]

class Shop(rm.Environment[Order]):
    async def setup(self) -> None:
        self.stock, self.cart = dict(self.task.stock), {}

    @rm.tool
    def take(self, item: str, count: int = 1) -> str:
        """Move an item from the shelf to the cart."""
        if self.stock.get(item, 0) < count:
            return f"not enough {item}"
        self.stock[item] -= count
        self.cart[item] = self.cart.get(item, 0) + count
        return f"cart: {self.cart}"

    @rm.reward
    def right_cart(self) -> bool:
        return self.cart == self.task.want

    @rm.reward(weight=0)                       # recorded as a metric, not rewarded
    def items_taken(self) -> int:
        return sum(self.cart.values())


# fmt: on


ORDER = Order.of("Buy two teas.", stock={"tea": 3}, want={"tea": 2})


async def play(environment: Any, *script: Any, task: rm.Task = ORDER) -> rm.Rollout:
    return await rm.play(task, environment, rm.ToolAgent(), rm.Scripted(*script or ("ok",)))


async def reward_of(environment: Any, *script: Any, task: rm.Task = ORDER) -> rm.Reward:
    rollout = await play(environment, *script, task=task)
    assert rollout.failure is None, rollout.failure
    assert rollout.reward is not None
    return rollout.reward


def outputs(rollout: rm.Rollout) -> list[str]:
    return [item.text for item in rollout.response.output if isinstance(item, rm.FunctionCallOutput)]


async def test_the_design_s_example_plays() -> None:
    rollout = await play(Shop, rm.call("take", item="tea", count=2), "Here you are.")
    assert rollout.reward == rm.Reward(1.0, {"right_cart": 1.0}, {"items_taken": 2.0})
    assert outputs(rollout) == ["cart: {'tea': 2}"]
    assert rollout.stop is rm.Stop.DONE


async def test_the_wrong_cart_earns_nothing_and_is_still_measured() -> None:
    rollout = await play(Shop, rm.call("take", item="tea", count=9), rm.call("take", item="tea"), "Here you are.")
    assert rollout.reward == rm.Reward(0.0, {"right_cart": 0.0}, {"items_taken": 1.0})
    assert outputs(rollout) == ["not enough tea", "cart: {'tea': 1}"]


async def test_worlds_share_nothing() -> None:
    assert (await reward_of(Shop, rm.call("take", item="tea", count=2), "done")).value == 1
    assert (await reward_of(Shop, rm.call("take", item="tea", count=2), "done")).value == 1
    assert ORDER.stock == {"tea": 3}


def test_a_class_knows_its_tasks_tools_and_rewards() -> None:
    assert Shop.task_type is Order
    assert list(Shop.tools) == ["take"]
    assert list(Shop.rewards) == ["right_cart", "items_taken"]
    assert json.loads(bytes(Shop.tools_json)) == [Shop.tools["take"].schema]
    assert Shop.tools["take"].description == "Move an item from the shelf to the cart."


def test_a_tool_and_a_reward_are_still_methods() -> None:
    shop = Shop(ORDER)
    shop.stock, shop.cart = {"tea": 1}, {}
    assert shop.take("tea") == "cart: {'tea': 1}"
    assert shop.right_cart() is False


# Inheritance.


class BigShop(Shop):
    @rm.tool
    async def put_back(self, item: str) -> str:
        """Move an item back."""
        self.cart[item] -= 1
        return "back"

    @rm.reward(weight=0.5)
    def no_tea_left(self) -> bool:
        return self.stock["tea"] == 0

    @rm.reward(weight=2)
    def right_cart(self) -> bool:
        return bool(self.cart)


async def test_a_subclass_inherits_tools_and_rewards_and_may_replace_them() -> None:
    assert BigShop.task_type is Order
    assert list(BigShop.tools) == ["take", "put_back"]
    assert list(BigShop.rewards) == ["right_cart", "items_taken", "no_tea_left"]
    assert list(Shop.rewards) == ["right_cart", "items_taken"]
    reward = await reward_of(BigShop, rm.call("take", item="tea", count=3), rm.call("put_back", item="tea"), "done")
    assert reward == rm.Reward(2.5, {"right_cart": 2.0, "no_tea_left": 0.5}, {"items_taken": 2.0})


async def test_rewards_may_come_from_a_plain_class_beside() -> None:
    class Polite:
        trajectory: rm.Trajectory

        @rm.reward(weight=0.1)
        def says_please(self) -> bool:
            return "please" in self.trajectory.answer

    class PoliteShop(Polite, Shop):
        pass

    reward = await reward_of(PoliteShop, "please")
    assert reward.parts == {"right_cart": 0.0, "says_please": 0.1}


def test_a_reward_belongs_to_the_class_that_has_it() -> None:
    assert BigShop.rewards["items_taken"].owner is BigShop
    assert Shop.rewards["items_taken"].owner is Shop


# Rewards.


async def test_parts_are_weighted_and_summed_and_metrics_are_not() -> None:
    class Graded(rm.Environment):
        @rm.reward
        def whole(self) -> bool:
            return True

        @rm.reward(weight=0.5)
        async def half(self) -> float:
            return 0.5

        @rm.reward(weight=-1)
        def penalty(self) -> int:
            return 2

        @rm.reward(weight=0)
        def words(self) -> int:
            return 40

    reward = await reward_of(Graded)
    assert reward.parts == {"whole": 1.0, "half": 0.25, "penalty": -2.0}
    assert reward.metrics == {"words": 40.0}
    assert reward.value == -0.75


async def test_rewards_are_computed_in_the_order_in_which_they_are_written() -> None:
    seen: list[str] = []

    class Ordered(rm.Environment):
        @rm.reward
        def zebra(self) -> bool:
            seen.append("zebra")
            return True

        @rm.reward
        async def apple(self) -> bool:
            seen.append("apple")
            return True

    assert list((await reward_of(Ordered)).parts) == seen == ["zebra", "apple"]


@pytest.mark.parametrize("answer", ["1", None, [1], {"reward": 1}])
async def test_a_reward_that_is_no_number_is_the_verifier_s_failure(answer: object) -> None:
    class Vague(rm.Environment):
        @rm.reward
        def vague(self) -> Any:
            return answer

    rollout = await play(Vague)
    assert rollout.reward is None
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.stop) == ("verifier", rm.Stop.FAILED)
    assert f"vague returned {type(answer).__name__}" in rollout.failure.detail


async def test_a_reward_that_is_not_finite_is_the_verifier_s_failure() -> None:
    class Endless(rm.Environment):
        @rm.reward
        def endless(self) -> float:
            return float("inf")

    failure = (await play(Endless)).failure
    assert failure is not None
    assert failure.where == "verifier"
    assert "a reward is a finite number" in failure.detail


async def test_a_reward_that_computes_gets_the_task_the_trajectory_and_a_snapshot() -> None:
    seen: list[Any] = []

    class Computed(rm.Environment[Order]):
        def snapshot(self) -> Any:
            return {"cart": ["tea"]}

        @rm.reward(cpu=True, weight=2)
        def computed(task: Order, trajectory: rm.Trajectory, snapshot: Any) -> float:
            seen.extend([task.want, trajectory.answer, snapshot])
            return 0.5

    assert await reward_of(Computed, "done") == rm.Reward(1.0, {"computed": 1.0})
    assert seen == [{"tea": 2}, "done", {"cart": ["tea"]}]


async def test_a_reward_that_computes_is_given_to_whoever_computes() -> None:
    class Computed(rm.Environment):
        @rm.reward(cpu=True, timeout_s=5)
        def computed(task: rm.Task, trajectory: rm.Trajectory, snapshot: Any) -> float:
            raise NotImplementedError

    async def compute(part: Any, task: rm.Task, trajectory: rm.Trajectory, snapshot: Any) -> float:
        assert (part.name, part.timeout_s, part.cpu) == ("computed", 5, True)
        return 0.25

    assert await Computed(ORDER).score(compute) == rm.Reward(0.25, {"computed": 0.25})


async def test_a_computed_reward_that_is_no_number_is_refused_too() -> None:
    class Vague(rm.Environment):
        @rm.reward(cpu=True)
        def vague(task: rm.Task, trajectory: rm.Trajectory, snapshot: Any) -> Any:
            return "0.5"

    failure = (await play(Vague)).failure
    assert failure is not None
    assert "vague returned str" in failure.detail


def test_a_reward_takes_self_alone() -> None:
    with pytest.raises(rm.ContractError, match=r"reward .*late: a reward takes \(self\)"):

        class Late(rm.Environment):
            @rm.reward
            def late(self, task: rm.Task) -> bool:
                return True


def test_a_reward_that_computes_takes_three_things() -> None:
    with pytest.raises(rm.ContractError, match=r"a reward with cpu=True takes \(task, trajectory, snapshot\)"):

        class Late(rm.Environment):
            @rm.reward(cpu=True)
            def late(self) -> bool:
                return True


# The other form: one method.


class Verified(rm.Environment):
    answer: Any = None

    def verify(self, task: rm.Task, response: rm.Response) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (0.5, rm.Reward(0.5)),
        (True, rm.Reward(1.0)),
        (rm.Reward(0.5, {"a": 0.5}, {"b": 2.0}), rm.Reward(0.5, {"a": 0.5}, {"b": 2.0})),
        (rm.Reward(True, {"a": True}, {"b": False}), rm.Reward(1.0, {"a": 1.0}, {"b": 0.0})),
        ({"reward": 1}, rm.Reward(1.0)),
        ({"reward": Fraction(1, 2), "speed": Fraction(1, 4)}, rm.Reward(0.5, metrics={"speed": 0.25})),
        (
            {"reward": 0.5, "accuracy": True, "length": 3, "extracted": "B", "steps": ["a"], "why": None},
            rm.Reward(
                0.5,
                metrics={"accuracy": 1.0, "length": 3.0},
                notes={"extracted": "B", "steps": ["a"], "why": None},
            ),
        ),
        ({"reward": 1.0, "reward_components": {"a": 0.25, "b": 0.75}}, rm.Reward(1.0, {"a": 0.25, "b": 0.75})),
    ],
)
async def test_verify_may_return_a_number_a_truth_a_reward_or_a_dict(answer: Any, reward: rm.Reward) -> None:
    class World(Verified):
        pass

    World.answer = answer
    found = await reward_of(World)
    assert found == reward
    assert {type(value) for value in (found.value, *found.parts.values(), *found.metrics.values())} == {float}


async def test_verify_may_be_async_and_reads_task_and_response() -> None:
    class World(rm.Environment):
        async def verify(self, task: rm.Task, response: rm.Response) -> float:
            return float(task["expected"] in response.output_text and response["usage"]["total_tokens"] > 0)

    assert (await reward_of(World, "it is 42", task=_row("42"))).value == 1


def _row(expected: str) -> rm.Task:
    return rm.read_task(encode({"responses_create_params": {"input": "?"}, "expected": expected}), rm.Task)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (None, "verify returned NoneType"),
        ("1", "verify returned str"),
        ({"score": 1}, "verify returned a dict without `reward`: its keys are score"),
        ({"reward": "1"}, "reward returned str"),
        ({"reward": 1, "why": object()}, "object"),
        ({"reward": float("nan")}, "a reward is a finite number"),
        ({"reward": 1, "reward_components": {"a": "much"}}, "TypeError"),
    ],
)
async def test_a_verdict_that_is_none_is_the_verifier_s_failure(answer: Any, what: str) -> None:
    class World(Verified):
        pass

    World.answer = answer
    rollout = await play(World)
    assert rollout.reward is None
    assert rollout.failure is not None
    assert rollout.failure.where == "verifier"
    assert what in rollout.failure.detail


def test_the_two_forms_do_not_mix() -> None:
    with pytest.raises(rm.ContractError, match=r"Both: have @reward methods or verify\(\), not both"):

        class Both(rm.Environment):
            @rm.reward
            def one(self) -> bool:
                return True

            def verify(self, task: rm.Task, response: rm.Response) -> float:
                return 1.0


def test_the_two_forms_do_not_mix_by_inheritance_either() -> None:
    with pytest.raises(rm.ContractError, match="Mixed"):

        class Mixed(Shop):
            def verify(self, task: rm.Task, response: rm.Response) -> float:
                return 1.0


async def test_an_environment_that_judges_nothing_stops_the_run_with_one_line() -> None:
    class Silent(rm.Environment):
        pass

    with pytest.raises(rm.ContractError, match=r"Silent .*@reward.*verify\(\)"):
        await play(Silent)


# Tools.


class Desk(rm.Environment):
    async def setup(self) -> None:
        self.rung = 0

    @rm.tool
    async def ring(self, times: int = 1) -> dict[str, int]:
        """Ring the bell."""
        self.rung += times
        return {"rung": self.rung}

    @rm.tool
    def refuse(self, why: str) -> str:
        """Say no."""
        raise rm.ToolError(f"no: {why}")

    @rm.tool
    def crash(self) -> str:
        """Break."""
        raise ZeroDivisionError("nothing to divide by")

    @rm.tool
    def leak(self) -> Any:
        """Return something that is no JSON."""
        return object()

    @rm.reward
    def rang(self) -> bool:
        return self.rung > 0


async def test_a_tool_s_value_is_read_as_json() -> None:
    assert outputs(await play(Desk, rm.call("ring", times=2), rm.call("ring"), "done")) == ['{"rung":2}', '{"rung":3}']


async def test_a_tool_s_message_is_for_the_model_and_the_rollout_goes_on() -> None:
    rollout = await play(Desk, rm.call("refuse", why="closed"), rm.call("ring"), "done")
    assert json.loads(outputs(rollout)[0]) == {"error": "no: closed"}
    assert rollout.reward == rm.Reward(1.0, {"rang": 1.0})


@pytest.mark.parametrize(
    ("name", "arguments", "what"),
    [
        ("shout", "{}", "Unknown tool: shout. The tools are: ring, refuse, crash, leak"),
        ("setup", "{}", "Unknown tool: setup."),
        ("ring", '{"times": "twice"}', r"Invalid tool call arguments: Expected `int`, got `str` - at `$.times`"),
        ("ring", '{"often": 2}', "Invalid tool call arguments: Object contains unknown field `often`"),
        ("refuse", "", "Invalid tool call arguments: Object missing required field `why`"),
        ("ring", "twice", "Invalid tool call arguments: not JSON"),
    ],
)
async def test_what_the_model_did_wrong_is_a_message_to_it(name: str, arguments: str, what: str) -> None:
    output = await Desk(ORDER).call(rm.FunctionCall(name=name, arguments=arguments, call_id="c1"))
    assert what in json.loads(output.text)["error"]
    assert (output.call_id, output.status) == ("c1", "incomplete")


async def test_a_world_without_tools_says_so() -> None:
    output = await Verified(ORDER).call(rm.call("take"))
    assert "The tools are: none" in output.text


@pytest.mark.parametrize(("name", "what"), [("crash", "ZeroDivisionError: nothing"), ("leak", "TypeError")])
async def test_what_a_tool_did_wrong_is_the_rollout_s_failure(name: str, what: str) -> None:
    rollout = await play(Desk, rm.call(name), "done")
    assert rollout.reward is None
    assert rollout.failure is not None
    assert (rollout.failure.where, rollout.failure.kind) == ("tool", "error")
    assert what in rollout.failure.detail
    assert [type(item) for item in rollout.response.output] == [rm.FunctionCall]


# What it is given.


async def test_config_and_rows_are_read_like_dicts() -> None:
    class Strict(rm.Environment):
        def verify(self, task: rm.Task, response: rm.Response) -> bool:
            if self.config.get("fast_mode", False):
                return task["expected"] in response.content
            return task["expected"] == response.content

    async with opened(Strict, {"fast_mode": True}) as fast:
        assert (await reward_of(fast, "it is 42", task=_row("42"))).value == 1
    assert (await reward_of(Strict, "it is 42", task=_row("42"))).value == 0


async def test_a_judge_is_one_of_the_models() -> None:
    class Judged(rm.Environment):
        async def verify(self, task: rm.Task, response: rm.Response) -> bool:
            question = rm.user(f"Is this polite? {response.output_text}")
            verdict = await self.models["judge"].reply(rm.Conversation([question]))
            return verdict.text == "yes"

    def judge(conversation: rm.Conversation) -> str:
        asked = conversation.items[0]
        assert isinstance(asked, rm.Message)
        return "yes" if "please" in asked.text else "no"

    async with opened(Judged, models={"judge": rm.Scripted(judge)}) as world:
        assert (await reward_of(world, "tea, please")).value == 1
        assert (await reward_of(world, "tea!")).value == 0


async def test_something_heavy_is_opened_once_and_closed() -> None:
    events: list[str] = []

    class Indexed(rm.Environment):
        @classmethod
        @asynccontextmanager
        async def shared(cls, config: Any) -> AsyncIterator[dict[str, str]]:
            events.append("opened")
            yield {"tea": config["colour"]}
            events.append("closed")

        @rm.reward
        def found(self) -> bool:
            return self.shared_value == {"tea": "green"}

    async with opened(Indexed, {"colour": "green"}) as world:
        assert [(await reward_of(world)).value for _ in range(2)] == [1, 1]
        assert events == ["opened"]
    assert events == ["opened", "closed"]


def test_an_environment_may_make_its_own_tasks() -> None:
    class Endless(Shop):
        @classmethod
        def tasks(cls, config: Any, seed: int) -> Iterator[Order]:
            number = seed
            while True:
                yield Order.of(f"Buy {number} teas.", stock={"tea": number}, want={"tea": number})
                number += 1

    assert Endless.makes_tasks()
    assert not Shop.makes_tasks()
    assert next(Endless.tasks({}, 7)).want == {"tea": 7}


def test_a_world_shows_nothing_of_itself_unless_it_says_what() -> None:
    assert Shop(ORDER).snapshot() is None
