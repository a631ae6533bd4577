"""One rollout in every place: the same to the byte, but for times and ids."""

import json
import re

import pytest
from tests.places.conftest import arranged
from tests.places.worlds import Broken, Errand, Riddle, Sphinx, Store

import rollmill as rm
from rollmill.rollout import play
from rollmill.store.schema import write_row

EVERYWHERE = ("model", "environment", "both", "agent")

ERRAND = rm.read_task(
    json.dumps(
        {
            "responses_create_params": {"input": "Two apples, please.", "temperature": 0.50, "metadata": {"a": "b"}},
            "stock": {"apple": 3},
            "want": {"apple": 2},
            "words": ["And a pear?"],
            "note": "kept ✓",
            "polite": "a field that a metric is called like",
        }
    ).encode(),
    Errand,
)
RIDDLE = rm.read_task(
    b'{"responses_create_params": {"input": "What walks on four legs?"}, "answer": "man", "x": 1.50}', Riddle
)

SCRIPTS = {
    "tools": (
        Store,
        ERRAND,
        [rm.call("look"), rm.call("take", item="apple", count=2), "Here you are.", "No pears. Thank you."],
    ),
    "several calls at once": (
        Store,
        ERRAND,
        [[rm.call("take", "c1", item="apple"), rm.call("take", "c2", item="apple")], "Thanks."],
    ),
    "wrong calls": (
        Store,
        ERRAND,
        [
            rm.call("take", item=3),
            rm.call("take", item="pear"),
            rm.call("verify"),
            rm.call("../close"),
            rm.FunctionCall(name="take", arguments="{not json", call_id="c"),
            rm.FunctionCall(name="take", arguments='{"item": "apple", "much": 1}', call_id="d"),
            "Oh.",
        ],
    ),
    "the world ends": (Store, ERRAND, [[rm.call("take", item="apple", count=2), rm.call("pay", "p")], "never said"]),
    "a tool breaks": (Store, ERRAND, [rm.call("look"), rm.call("drop"), "never said"]),
    "too many turns": (Store, ERRAND, [rm.call("look")]),
    "no tools": (Sphinx, RIDDLE, ["a man"]),
    "nothing said": (Sphinx, RIDDLE, [""]),
    "cut": (Sphinx, RIDDLE, [rm.Reply((rm.assistant("a m"),), rm.Usage(3, 4, 1, 2), rm.Stop.LENGTH)]),
    "filtered": (Sphinx, RIDDLE, [rm.Reply((), rm.Usage(3, 4), rm.Stop.CONTENT_FILTER)]),
    "no longer fits": (Sphinx, RIDDLE, [rm.Reply((), stop=rm.Stop.CONTEXT)]),
    "reasoning": (
        Sphinx,
        RIDDLE,
        [
            rm.Reply(
                (
                    rm.read_item(b'{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]}'),
                    rm.assistant("man"),
                )
            )
        ],
    ),
    "an unknown item": (Sphinx, RIDDLE, [(rm.read_item(b'{"type":"dream","x":1.50}'), rm.assistant("man"))]),
    "tokens": (
        Sphinx,
        RIDDLE,
        [rm.Reply((rm.assistant("man").with_tokens(rm.Tokens([1, 2], [3], [-0.25])),))],
    ),
    "the verdict breaks": (Broken, RIDDLE, ["a man"]),
}


async def row(where: str, place: str, case: str) -> tuple[str, object]:
    kind, task, lines = SCRIPTS[case]
    slot = rm.Slot("my_agent", task.identity, task_index=3, rollout_index=1)
    async with arranged(where, place, kind, rm.Scripted(*lines, name="m")) as (world, agent, model):
        rollout = await play(task, world, agent, model, slot=slot)
    if rollout.failure is not None:
        happened = [bytes(item.json) for item in rollout.response.output]
        return "failed", (rollout.failure, happened, rollout.turns, rollout.tool_calls)
    return "rewarded", without_times(json.loads(write_row(rollout, "run")))


def without_times(found: dict) -> dict:
    assert found["rollmill"].pop("seconds").keys() >= {"setup", "play", "model", "verify"}
    return found


def alike(one: object, other: object) -> bool:
    """What tells of a failure may name the place where it happened."""
    return re.sub(r"http://[^ ]+ answered \d+: \w+: ", "", repr(one)) == re.sub(
        r"http://[^ ]+ answered \d+: \w+: ", "", repr(other)
    )


@pytest.mark.parametrize("case", SCRIPTS)
@pytest.mark.parametrize("where", EVERYWHERE)
async def test_the_same_rollout_everywhere(where: str, place: str, case: str):
    here, there = await row("nothing", "object", case), await row(where, place, case)
    assert alike(here, there), f"{here}\n{there}"


async def test_rows_are_the_same_to_the_byte():
    rows = []
    for where, place in (("nothing", "object"), ("model", "http"), ("environment", "http"), ("agent", "http")):
        kind, task, lines = SCRIPTS["tools"]
        async with arranged(where, place, kind, rm.Scripted(*lines, name="m")) as (world, agent, model):
            rollout = await play(task, world, agent, model, slot=rm.Slot("a", task.identity))
        rows.append(re.sub(rb'"seconds":\{[^}]*\}', b"", write_row(rollout, "run")))
    assert rows[0].count(b"function_call") >= 4
    assert set(rows) == {rows[0]}
