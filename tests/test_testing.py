"""The test kit accepts what keeps its contract and names what does not."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from msgspec import Raw

import rollmill as rm
from rollmill.testing import Script, check_agent, check_environment, check_model
from rollmill.types import OtherItem, encode


class Order(rm.Task):
    want: dict[str, int]


ORDERS = [Order.of(f"Buy {count} teas.", want={"tea": count}) for count in (1, 2)]


class Shop(rm.Environment[Order]):
    verification = "replay"

    async def setup(self) -> None:
        self.cart: dict[str, int] = {}

    @rm.tool
    def take(self, item: str, count: int = 1) -> str:
        """Put something into the cart."""
        self.cart[item] = self.cart.get(item, 0) + count
        return f"cart: {self.cart}"

    @rm.reward
    def right_cart(self) -> bool:
        return self.cart == self.task.want


def gold(task: Order) -> Script:
    return [*(rm.call("take", f"call_{item}", item=item, count=count) for item, count in task.want.items()), "done"]


def wrong(task: Order) -> Iterable[Script]:
    yield ["I bought it all, believe me."]
    yield [rm.call("take", item="tea", count=99), "done"]


async def refused(what: str, kind: type[rm.Environment], **options: Any) -> None:
    with pytest.raises(rm.ContractError, match=what):
        await check_environment(kind, ORDERS, **({"gold": gold, "wrong": wrong} | options))


# Environments.


async def test_a_good_environment_is_accepted() -> None:
    await check_environment(Shop, ORDERS, gold=gold, wrong=wrong)


async def test_an_environment_is_checked_without_answers_too() -> None:
    await check_environment(Shop, ORDERS)


async def test_an_environment_gets_its_configuration_its_models_and_what_it_shares() -> None:
    class Judged(Shop):
        verification = "unsupported"

        @classmethod
        @asynccontextmanager
        async def shared(cls, config: Any) -> AsyncIterator[int]:
            yield config["most"]

        @rm.reward
        async def not_too_much(self) -> bool:
            verdict = await self.models["judge"].reply(rm.Conversation([rm.user(str(self.cart))]))
            return verdict.text == "good" and sum(self.cart.values()) <= self.shared_value

    judge = rm.Scripted("good")
    await check_environment(Judged, ORDERS, gold=gold, full=2, config={"most": 9}, models={"judge": judge})


async def test_a_generous_environment_may_earn_more_than_one() -> None:
    class Generous(Shop):
        @rm.reward
        def bonus(self) -> float:
            return 0.5 if self.right_cart() else 0.0

    await check_environment(Generous, ORDERS, gold=gold, wrong=wrong, full=1.5)


async def test_no_task_is_no_check() -> None:
    with pytest.raises(rm.ContractError, match="Shop: there was no task to check it with"):
        await check_environment(Shop, [])


async def test_tasks_of_another_kind_are_named() -> None:
    with pytest.raises(rm.ContractError, match="Shop plays Order, not Task"):
        await check_environment(Shop, [rm.Task.of("Buy tea.")])  # type: ignore[list-item]


async def test_state_on_the_class_is_found() -> None:
    class Shared(Shop):
        cart: ClassVar[dict[str, int]] = {}  # type: ignore[misc]

        async def setup(self) -> None:
            pass

        @rm.reward
        def right_cart(self) -> float:
            return float(len(self.cart)) / (1 + sum(self.cart.values()))

    await refused("Shared: the same script earned .*; state belongs on self", Shared)


async def test_state_on_the_class_is_found_where_every_setup_renews_it() -> None:
    class Renewed(Shop):
        async def setup(self) -> None:
            type(self).cart = {}

    await refused(r"Renewed: the same script earned \[0.0, 1.0\], alone and with 8 worlds at once", Renewed)


async def test_chance_is_found() -> None:
    chance = random.Random(7)

    class Dice(Shop):
        @rm.reward
        def right_cart(self) -> float:
            return chance.random()

    await refused("Dice: the same script earned .*; state belongs on self, and chance needs a seed", Dice)


async def test_a_tool_that_breaks_on_what_models_send_is_found() -> None:
    class Fragile(Shop):
        @rm.tool
        def share(self, among: int = 0) -> float:
            """Divide the cart."""
            return len(self.cart) / among

    await refused("Fragile fails where it should answer: ZeroDivisionError.*; the model said .*share", Fragile)


async def test_a_reward_that_breaks_on_an_empty_answer_is_found() -> None:
    class Naive(rm.Environment[Order]):
        def verify(self, task: Order, response: rm.Response) -> float:
            return float(response.output_text.split()[0] == "tea")

    await refused("Naive fails where it should answer: IndexError", Naive, gold=None, wrong=None)


async def test_a_world_that_does_not_build_is_found() -> None:
    class Unbuilt(Shop):
        async def setup(self) -> None:
            raise OSError("no stock file")

    await refused("Unbuilt fails where it should answer: OSError: no stock file", Unbuilt)


async def test_a_world_with_a_state_that_claims_to_have_none_is_found() -> None:
    class Claims(Shop):
        verification = "stateless"

    await refused("Claims declares verification = stateless, but earns 0.0 when it is verified again, and 1.0", Claims)


async def test_a_world_that_answers_otherwise_when_replayed_is_found() -> None:
    receipts = itertools.count()

    class Receipts(Shop):
        @rm.tool
        def take(self, item: str, count: int = 1) -> str:
            """Put something into the cart."""
            return f"{super().take(item, count)}, receipt {next(receipts)}"

    await refused("Receipts declares verification = replay, but could not be verified again: .*receipt", Receipts)


async def test_a_wrong_declaration_is_found_without_answers_too() -> None:
    class Clocked(Shop):
        verification = "stateless"

        @rm.reward
        def right_cart(self) -> bool:
            return "play" in self.trajectory.seconds

    await refused("Clocked declares verification = stateless", Clocked, gold=None, wrong=None)


async def test_a_gold_answer_that_does_not_earn_everything_is_found() -> None:
    with pytest.raises(AssertionError, match=r"the gold answer earns 0.0, not 1.0: .*Buy 1 teas"):
        await check_environment(Shop, ORDERS, gold=lambda task: ["done"])


async def test_a_wrong_answer_that_earns_everything_is_found() -> None:
    class Gullible(Shop):
        @rm.reward
        def right_cart(self) -> bool:
            return self.cart == self.task.want or "believe me" in self.trajectory.answer

    with pytest.raises(AssertionError, match=r"a wrong answer earns 1.0: \['I bought it all, believe me.'\]"):
        await check_environment(Gullible, ORDERS, gold=gold, wrong=wrong)


# Models.


class Parrot:
    name = "parrot"

    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        await asyncio.sleep(0)
        return self.answer(conversation)

    def answer(self, conversation: rm.Conversation) -> rm.Reply:
        return rm.Reply((rm.assistant("yes"),), rm.Usage(3, 1), fields={"id": Raw(b'"r"')})


@pytest.mark.parametrize("model", [Parrot(), rm.Scripted("yes"), rm.Scripted(rm.call("take"), [rm.Reasoning()])])
async def test_a_good_model_is_accepted(model: rm.Model) -> None:
    await check_model(model)


class Uncounted(Parrot):
    def answer(self, conversation: rm.Conversation) -> rm.Reply:
        return rm.Reply((rm.assistant("yes"),))


class Silent(Parrot):
    def answer(self, conversation: rm.Conversation) -> rm.Reply:
        return rm.Reply((), rm.Usage(3, 1))


class SilentLater(Parrot):
    def answer(self, conversation: rm.Conversation) -> rm.Reply:
        return super().answer(conversation) if conversation.turn == 0 else rm.Reply((), rm.Usage(3, 1))


class Odd(Parrot):
    def answer(self, conversation: rm.Conversation) -> rm.Reply:
        return rm.Reply((OtherItem(type="reasoning"),), rm.Usage(3, 1))


class Doubled(Parrot):
    def answer(self, conversation: rm.Conversation) -> rm.Reply:
        return rm.Reply((rm.assistant("yes"),), rm.Usage(3, 1), fields={"usage": Raw(encode({"input_tokens": 3}))})


class Stubborn(Parrot):
    async def reply(self, conversation: rm.Conversation) -> rm.Reply:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            raise rm.ModelError("transport", "interrupted") from None
        return self.answer(conversation)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Uncounted(), "parrot does not count its tokens"),
        (Silent(), "parrot answered nothing and did not say why"),
        (SilentLater(), "parrot answered nothing and did not say why"),
        (Odd(), "parrot: an item changes when it is read back"),
        (Doubled(), "parrot: `usage` belongs into the reply itself"),
        (Stubborn(), "parrot turns cancellation into something else"),
    ],
)
async def test_a_model_that_breaks_a_promise_is_named(model: rm.Model, what: str) -> None:
    with pytest.raises(rm.ContractError, match=what):
        await check_model(model)


async def test_an_empty_reply_that_says_why_is_an_answer() -> None:
    class Full(Parrot):
        def answer(self, conversation: rm.Conversation) -> rm.Reply:
            return rm.Reply((), stop=rm.Stop.CONTEXT)

    await check_model(Full())


# Agents.


class Player:
    """The loop, written once more: what subclasses break."""

    async def play(self, task: rm.Task, environment: Any, model: rm.Model, trajectory: rm.Trajectory) -> rm.Stop:
        while True:
            said = (*trajectory.prompt, *trajectory.items)
            reply = await model.reply(rm.Conversation(said, task.params, trajectory.id, trajectory.turns))
            trajectory.add_reply(reply)
            if not reply.calls:
                return rm.Stop.DONE
            for call in reply.calls:
                trajectory.add_output(await environment.call(call))


@pytest.mark.parametrize("agent", [Player(), rm.ToolAgent(), rm.ToolAgent(max_turns=3, deadline_s=60)])
async def test_a_good_agent_is_accepted(agent: rm.Agent) -> None:
    await check_agent(agent)


class Hiding(Player):
    async def play(self, task: rm.Task, environment: Any, model: rm.Model, trajectory: rm.Trajectory) -> rm.Stop:
        try:
            return await super().play(task, environment, model, trajectory)
        except rm.RolloutError:
            return rm.Stop.DONE


class AtTheEnd(Player):
    async def play(self, task: rm.Task, environment: Any, model: rm.Model, trajectory: rm.Trajectory) -> rm.Stop:
        own = rm.Trajectory(trajectory.prompt)
        stop = await super().play(task, environment, model, own)
        trajectory.items, trajectory.usage, trajectory.turns = own.items, own.usage, own.turns
        return stop


class Forgetful(Player):
    async def play(self, task: rm.Task, environment: Any, model: rm.Model, trajectory: rm.Trajectory) -> rm.Stop:
        stop = await super().play(task, environment, model, trajectory)
        trajectory.items[:] = [item for item in trajectory.items if not isinstance(item, rm.FunctionCallOutput)]
        return stop


class Crashing(Player):
    async def play(self, task: rm.Task, environment: Any, model: rm.Model, trajectory: rm.Trajectory) -> rm.Stop:
        raise KeyError("tools")


class Vague(Player):
    async def play(self, task: rm.Task, environment: Any, model: rm.Model, trajectory: rm.Trajectory) -> rm.Stop:
        await super().play(task, environment, model, trajectory)
        return rm.Stop.MAX_TURNS


@pytest.mark.parametrize(
    ("agent", "what"),
    [
        (Hiding(), "Hiding hides a failing model"),
        (AtTheEnd(), "AtTheEnd does not append as it plays"),
        (Forgetful(), "Forgetful: the trajectory holds .*out of order"),
        (Crashing(), "Crashing failed on two tool calls and an answer: KeyError"),
        (Vague(), "Vague ended with max_turns"),
        (rm.ToolAgent(max_turns=1), "ToolAgent ended with max_turns"),
    ],
)
async def test_an_agent_that_breaks_a_promise_is_named(agent: rm.Agent, what: str) -> None:
    with pytest.raises(rm.ContractError, match=what):
        await check_agent(agent)
