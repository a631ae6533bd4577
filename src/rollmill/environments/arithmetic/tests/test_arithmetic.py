"""Arithmetic, as it is used."""

import json
from itertools import islice
from pathlib import Path

import pytest

import rollmill as rm
from rollmill.environments.arithmetic import Arithmetic
from rollmill.environments.arithmetic.environment import Sum, result
from rollmill.testing import check_environment

EXAMPLES = rm.from_jsonl(Path(__file__).parents[1] / "data" / "example.jsonl", Sum)


def made(count: int = 5, seed: int = 0, **config: object) -> list[Sum]:
    return list(islice(Arithmetic.tasks(config, seed), count))


async def test_a_right_answer_earns_one_and_verifies_again_from_the_row() -> None:
    for task in EXAMPLES:
        rollout = await rm.play(task, Arithmetic, rm.ToolAgent(), rm.Scripted(f"The result is {task.answer}."))
        assert rollout.reward == rm.Reward(1.0, {"correct": 1.0}, {"answered": 1.0})
        assert await rm.verify_again(rollout, Arithmetic) == rollout.reward


@pytest.mark.parametrize(("said", "answered"), [("It is 41.", 1.0), ("No idea.", 0.0), ("", 0.0)])
async def test_a_wrong_answer_earns_nothing(said: str, answered: float) -> None:
    task = Sum.of("17 + 25?", answer=42)
    rollout = await rm.play(task, Arithmetic, rm.ToolAgent(), rm.Scripted(said))
    assert rollout.reward == rm.Reward(0.0, {"correct": 0.0}, {"answered": answered})


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("42", 42),
        ("17 + 25 = 42.", 42),
        ("17+25=42", 42),
        ("The sum of 17 and 25 is **42**!", 42),
        ("17 + 25\n42", 42),
        ("10 + 20 = 30, 7 + 5 = 12, and 30 + 12 = 42", 42),
        (r"So it is \boxed{42}.", 42),
        ("8 - 12 = -4", -4),
        ("8 \u2212 12 = \u22124", -4),
        ("5 + 0 = 5", 5),
        ("10 - 5 = 5", 5),
        ("042", 42),
    ],
)
def test_the_number_that_an_answer_ends_on_is_its_result(said: str, number: int) -> None:
    assert result(said) == number


@pytest.mark.parametrize(
    "said",
    [
        "",
        "forty-two",
        "What is 10 - 5",
        "17 + 25",
        "It is 40, 41, 42",
        "1 2 3 4 42",
        "41\n42",
        "41 or 42",
        "41, or perhaps it is 42",
        "between 41 and 42",
        "1,2,3,42",
        "41-42",
        "42.5",
        "10:42",
        "84/2",
        "42nd",
        "room B42",
        "9" * 5000,
    ],
)
def test_what_leaves_the_result_open_is_none(said: str) -> None:
    assert result(said) is None


def test_a_very_long_answer_is_read() -> None:
    assert result("1 " * 500_000 + "is 42") == 42
    assert result("1" * 1_000_000 + "x") is None


def test_the_same_seed_makes_the_same_tasks() -> None:
    assert [task.identity for task in made(50, seed=3)] == [task.identity for task in made(50, seed=3)]
    assert [task.identity for task in made(50, seed=3)] != [task.identity for task in made(50, seed=4)]


def test_the_examples_are_the_first_tasks_of_seed_0() -> None:
    assert [task.identity for task in EXAMPLES] == [task.identity for task in made(5)]


def test_config_says_how_large_and_which_operations() -> None:
    answers = [task.answer for task in made(200, largest=9, operations=["-"])]
    assert set(answers) <= set(range(9))
    assert all("-" in task.prompt[0].text for task in made(20, operations=["-"]))


@pytest.mark.parametrize(
    "config", [{"largest": 0}, {"largest": 100}, {"operations": []}, {"operations": ["*"]}, {"larges": 5}]
)
def test_a_wrong_config_is_refused_at_once(config: dict[str, object]) -> None:
    with pytest.raises(rm.ConfigError, match="arithmetic: "):
        Arithmetic.tasks(config, 0)


def test_a_row_has_content_only() -> None:
    (task,) = made(1)
    assert set(task.fields) == {"responses_create_params", "answer"}
    assert set(json.loads(bytes(task.responses_create_params))) == {"input", "max_output_tokens"}


async def test_it_keeps_the_contract_of_an_environment() -> None:
    await check_environment(
        Arithmetic, EXAMPLES, gold=lambda task: [str(task.answer)], wrong=lambda task: [[str(task.answer + 1)]]
    )
