"""The scripted model as a backend."""

import msgspec
import pytest

import rollmill as rm
from rollmill.model import Conversation
from rollmill.models.scripted import Fields, make


async def said(model: rm.Scripted, turns: int) -> list[str]:
    return [(await model.reply(Conversation((rm.user("hi"),), turn=turn))).text for turn in range(turns)]


async def test_says_one_line_a_turn_and_the_last_one_from_then_on() -> None:
    model = make(msgspec.convert({"lines": ["a", "b"], "model": "parrot"}, Fields))
    assert model.name == "parrot"
    assert await said(model, 4) == ["a", "b", "b", "b"]


async def test_every_rollout_begins_with_the_first_line() -> None:
    model = make(Fields(("a", "b")))
    assert await said(model, 2) == await said(model, 2) == ["a", "b"]


@pytest.mark.parametrize("given", [{}, {"lines": []}])
async def test_without_lines_it_agrees(given: dict[str, list[str]]) -> None:
    model = make(msgspec.convert(given, Fields))
    assert model.name == "scripted"
    assert await said(model, 2) == ["ok", "ok"]


def test_a_misspelled_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="line"):
        msgspec.convert({"line": ["a"]}, Fields)


async def test_plays_a_rollout() -> None:
    class Agrees(rm.Environment[rm.Task]):
        @rm.reward
        def agreed(self) -> bool:
            return self.trajectory.answer == "ok"

    rollout = await rm.play(rm.Task.of("all right?"), Agrees, rm.ToolAgent(), make(Fields()))
    assert rollout.reward is not None
    assert (rollout.reward.value, rollout.model, rollout.stop) == (1.0, "scripted", rm.Stop.DONE)
    assert rollout.response.usage.estimated
