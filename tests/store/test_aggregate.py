import random
import statistics
from itertools import groupby

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.store.rows import append, failed, opened, rollout, slot_of

import rollmill as rm
from rollmill.quality.spread import Numbers, spread
from rollmill.store.aggregate import Agent, Aggregate
from rollmill.store.reader import NAME, read_index
from rollmill.store.schema import entry_of
from rollmill.types import Failure, Response, Stop, Usage

AGENTS = ("left", "right")
FAULT = Failure("model", "overload", "busy")


def made(rng: random.Random, tasks: int) -> list[dict]:
    """Slots as a run ends them: rewarded, deferred or failed, with metrics that only some of them have."""
    found = []
    for index in range(tasks):
        agent = rng.choice(AGENTS)
        for repeat in range(rng.randint(1, 5)):
            numbers = {"right": rng.choice([0.0, 1.0]), 'odd "name"': rng.gauss(0, 1e3)}
            if rng.random() < 0.5:
                numbers["turns"] = rng.random()
            found.append(
                {
                    "slot": slot_of(f"task {index}", repeat, index, agent=agent),
                    "how": rng.choices(["rewarded", "deferred", "failed"], [8, 1, 1])[0],
                    "reward": rng.choice([0.0, 0.25, 1.0, 1.0]),
                    "metrics": numbers,
                    "usage": Usage(rng.randrange(10_000), rng.randrange(100)),
                }
            )
    rng.shuffle(found)
    return found


def entry(one: dict):
    reward = rm.Reward(one["reward"], {}, one["metrics"])
    response = Response((rm.assistant("yes"),), one["usage"])
    ended = rollout(one["slot"], reward=0.0)
    if one["how"] == "failed":
        return entry_of(replace(ended, reward=None, failure=FAULT, stop=Stop.FAILED), "run")
    counted = entry_of(replace(ended, reward=reward, response=response, tool_calls=2), "run")
    return replace(counted, reward=None) if one["how"] == "deferred" else counted


def numbers_of(one: dict) -> dict[str, float]:
    """Every number of a rollout; a metric called `turns` is the environment's own."""
    usage = one["usage"]
    tokens = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    return {"turns": 1, "tool_calls": 2} | tokens | one["metrics"] | {"reward": one["reward"]}


@pytest.fixture
def aggregate(tmp_path):
    """Index these slots, and ask."""
    readers = []

    def make(slots: list[dict]) -> Aggregate:
        with opened(tmp_path / "a.jsonl") as store:
            append(store, *(entry(one) for one in slots if one["how"] == "failed"))
            place = store.failures.append(failed("x"), Raw(b"null"), final=True)
            with store.index.transaction():
                store.index.add([(entry(one), place) for one in slots if one["how"] != "failed"])
            readers.append(read_index(store.folder / NAME))
        return Aggregate(readers[0])

    yield make
    for reader in readers:
        reader.close()


def spreads(answers: Aggregate, agent: Agent) -> dict[str, Numbers]:
    return {name: spread(*values) for name, values in answers.values(agent)}


@pytest.mark.parametrize("seed", range(5))
def test_every_number_is_what_the_statistics_of_its_values_are(aggregate, seed):
    slots = made(random.Random(seed), 40)
    answers = aggregate(slots)
    agents = answers.agents()
    assert [agent.name for agent in agents] == sorted(AGENTS)
    for agent in agents:
        counted = [numbers_of(one) for one in slots if one["slot"].agent == agent.name and one["how"] == "rewarded"]
        found = spreads(answers, agent)
        assert set(found) == {name for numbers in counted for name in numbers}
        assert next(iter(found)) == "reward"
        for name, one in found.items():
            if name == "turns":
                # Where some rollouts have the metric, only those count.
                of = [numbers["turns"] for numbers in counted if numbers["turns"] != 1]
            else:
                of = [numbers[name] for numbers in counted]
            assert (one.count, one.least, one.most) == (len(of), min(of), max(of))
            assert one.mean == pytest.approx(statistics.fmean(of))
            assert one.median == pytest.approx(statistics.median(of))
            assert one.deviation == pytest.approx(statistics.stdev(of))


@pytest.mark.parametrize("seed", range(5))
def test_slots_come_in_the_order_of_their_tasks_each_once(aggregate, seed):
    slots = made(random.Random(seed), 40)
    answers = aggregate(slots)
    for agent in answers.agents():
        mine = sorted(
            (one for one in slots if one["slot"].agent == agent.name),
            key=lambda one: (one["slot"].task_index, one["slot"].rollout_index),
        )
        ended = list(answers.ended(agent))
        assert [(one.task_index, one.rollout_index) for one in ended] == [
            (one["slot"].task_index, one["slot"].rollout_index) for one in mine
        ]
        assert [one.failed for one in ended] == [one["how"] == "failed" for one in mine]
        assert [one.reward for one in ended] == [one["reward"] if one["how"] == "rewarded" else None for one in mine]
        assert [one.numbers for one in ended] == [numbers_of(one) if one["how"] == "rewarded" else {} for one in mine]
        assert [one.task_index for one in answers.failed(agent)] == [
            one["slot"].task_index for one in mine if one["how"] == "failed"
        ]
        assert answers.slots(agent) == len(mine)
        assert answers.tasks(agent) == len({one["slot"].task_index for one in mine})


def test_rewards_and_the_sizes_of_groups_count_what_was_verified(aggregate):
    slots = made(random.Random(7), 60)
    answers = aggregate(slots)
    for agent in answers.agents():
        rewards = [
            (one["slot"].task_index, one["reward"])
            for one in sorted(slots, key=lambda one: (one["slot"].task_index, one["slot"].rollout_index))
            if one["slot"].agent == agent.name and one["how"] == "rewarded"
        ]
        assert list(answers.rewards(agent)) == rewards
        sizes: dict[tuple[int, int], int] = {}
        for _, of_task in groupby(rewards, key=lambda one: one[0]):
            group = [reward for _, reward in of_task]
            size = len(group), sum(reward >= 1 for reward in group)
            sizes[size] = sizes.get(size, 0) + 1
        assert answers.sizes(agent) == sizes


def test_one_rollout_has_no_deviation_and_an_agent_that_only_failed_has_no_numbers(aggregate):
    one = {"how": "rewarded", "reward": 0.5, "metrics": {}, "usage": Usage(3, 4)}
    slots = [
        one | {"slot": slot_of("a", agent="left")},
        one | {"slot": slot_of("b", index=1, agent="right"), "how": "failed"},
    ]
    answers = aggregate(slots)
    left, right = answers.agents()
    found = spreads(answers, left)
    assert (found["reward"].median, found["reward"].deviation) == (0.5, 0.0)
    assert found["total_tokens"].mean == 7
    assert spreads(answers, right) == {}
    assert answers.slots(right) == 1


def test_a_query_ends_when_it_is_told_to(aggregate, tmp_path):
    aggregate(made(random.Random(1), 3))
    with read_index(tmp_path / "a.run" / NAME) as reader:
        reader.heed(lambda: True)
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        with pytest.raises(rm.StoreError, match="interrupted"):
            list(reader.query(endless, {}))
