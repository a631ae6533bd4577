"""The aggregate that is made from the index, and the one that is made from the rows."""

import json
import random

import pytest
from msgspec.structs import replace
from tests.store.rows import Made, append, opened, rollout, slot_of

import rollmill as rm
from rollmill.collection.aggregate import write_aggregate
from rollmill.quality.aggregate import aggregate
from rollmill.store.aggregate import Aggregate
from rollmill.store.inputs import read_inputs
from rollmill.store.reader import NAME, read_index
from rollmill.store.schema import entry_of, write_row
from rollmill.types import Response, Usage, read_task

AGENTS = ("left", "right")


def from_input(index: int) -> rm.Task:
    """Two of its fields have names of metrics: they are the input's all the same."""
    return read_task(
        b'{"responses_create_params": {"input": "x"}, "number": %d, "words": 3, "right": true}' % index, rm.Task
    )


def made(rng: random.Random, tasks: int) -> list[Made]:
    """Rollouts as a run writes them, in any order: some not verified, some with metrics that others lack."""
    found = []
    for index in range(tasks):
        agent, given = rng.choice(AGENTS), from_input(index)
        for repeat in range(rng.randint(1, 5)):
            metrics = {"words": rng.gauss(0, 1e3)} | ({"turns": rng.random()} if agent == "left" else {})
            parts = {"right": rng.choice([0.0, 1.0]), "short": rng.choice([0.0, 0.25])}
            skipped = {"verification_skipped": True} if rng.random() < 0.2 else {"verdict": "fine"}
            one = replace(
                rollout(slot_of(f"task {index}", repeat, index, agent=agent)),
                task=given,
                reward=rm.Reward(sum(parts.values()), parts, metrics, skipped),
                response=Response((rm.assistant("yes"),), Usage(rng.randrange(10_000), rng.randrange(100))),
                tool_calls=rng.randrange(3),
            )
            found.append(Made(entry_of(one, "run"), write_row(one, "run")))
    rng.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_rows_and_index_come_to_the_same(tmp_path, seed):
    path, rng = tmp_path / "a.jsonl", random.Random(seed)
    with opened(path) as store:
        append(store, *made(rng, 40))
        with (
            read_index(store.folder / NAME) as reader,
            read_inputs(path) as inputs,
            (tmp_path / "a.json").open("wb") as file,
        ):
            write_aggregate(file, Aggregate(reader), inputs, lambda agent: 1)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for one in json.loads((tmp_path / "a.json").read_text()):
        agent = one.pop("agent_ref")["name"]
        mine = [row for row in rows if row["agent_ref"]["name"] == agent]
        assert len(mine) > 10
        assert one == json.loads(json.dumps(aggregate(mine)))


def test_a_command_writes_what_its_rows_come_to(shell):
    words = ("collect", "arithmetic", "--model", "scripted:12", "--repeats", "3", "--out", "a.jsonl")
    rows = [{"responses_create_params": {"input": f"{n}?"}, "answer": n % 13, "level": 3} for n in range(20)]
    shell.write("tasks.jsonl", *rows)
    done = shell.run("rollmill", *words, "--input", "tasks.jsonl")
    assert done.returncode == 0, done.stderr
    (written,) = json.loads((shell.folder / "a_aggregate_metrics.json").read_text())
    assert written.pop("agent_ref") == {"name": "arithmetic_simple_agent"}
    assert written == aggregate(shell.rows("a.jsonl"))
    assert written["agent_metrics"]["pass@3/reward"] == pytest.approx(5)
    assert "mean/level" not in written["agent_metrics"]
