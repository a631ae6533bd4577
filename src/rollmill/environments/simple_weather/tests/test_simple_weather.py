"""Simple weather, as it is used."""

from pathlib import Path

import pytest

import rollmill as rm
from rollmill.environments.simple_weather import SimpleWeather
from rollmill.environments.simple_weather.environment import Forecast
from rollmill.testing import check_environment

EXAMPLES = rm.from_jsonl(Path(__file__).parents[1] / "data" / "example.jsonl", Forecast)
WEATHER = {"Oslo": "snowy", "Lisbon": "sunny", "Dublin": "light rain"}


def oslo(**fields: object) -> Forecast:
    row = {"city": "Oslo", "expected": "snowy", "weather": WEATHER} | fields
    return Forecast.of("What is the weather like in Oslo?", **row)


def ask(city: str, call_id: str = "call_1") -> rm.FunctionCall:
    return rm.call("get_weather", call_id, city=city)


async def play(*lines: object, task: Forecast | None = None) -> rm.Rollout:
    return await rm.play(task or oslo(), SimpleWeather, rm.ToolAgent(), rm.Scripted(*lines))


async def test_asking_and_telling_earns_one_and_verifies_again_by_replay() -> None:
    for task in EXAMPLES:
        rollout = await play(ask(task.city), f"The weather in {task.city} is {task.expected}.", task=task)
        assert rollout.reward == rm.Reward(1.0, {"answered": 1.0}, {"tool_calls": 1.0})
        assert await rm.verify_again(rollout, SimpleWeather) == rollout.reward


@pytest.mark.parametrize("city", ["Oslo", "oslo", " OSLO "])
async def test_a_city_is_found_whatever_its_case(city: str) -> None:
    rollout = await play(ask(city), "It is Snowy there!")
    assert rollout.response.output[1].text == "The weather in Oslo is snowy."
    assert rollout.reward.value == 1


async def test_a_wrong_city_first_may_be_put_right() -> None:
    rollout = await play(ask("Norway"), ask("Oslo", "call_2"), "Oslo is snowy.")
    assert rollout.response.output[1].text == "no weather for 'Norway'; the cities are Oslo, Lisbon, Dublin"
    assert rollout.reward == rm.Reward(1.0, {"answered": 1.0}, {"tool_calls": 2.0})


async def test_part_of_the_weather_may_be_what_is_expected() -> None:
    task = oslo(city="Dublin", expected="rain")
    assert (await play(ask("Dublin"), "Light rain in Dublin.", task=task)).reward.value == 1


@pytest.mark.parametrize(
    "lines",
    [
        ["It is snowy."],
        [ask("Lisbon"), "It is snowy."],
        [ask("Norway"), "It is snowy."],
        [rm.call("get_weather", town="Oslo"), "It is snowy."],
        [rm.call("get_forecast", city="Oslo"), "It is snowy."],
        [ask("Oslo"), "I do not know."],
        [ask("Oslo"), ""],
        [ask("Oslo"), "It is sunny."],
        [ask("Oslo"), "It is not snowy."],
        [ask("Oslo"), "It isn't snowy."],
        [ask("Oslo"), "Snowyish."],
        [ask("Oslo"), "It is snowy, sunny or light rain."],
        [ask("Oslo"), ask("Lisbon", "call_2"), "It is snowy in one and sunny in the other."],
    ],
)
async def test_a_guess_a_hedge_and_a_wrong_word_earn_nothing(lines: list[object]) -> None:
    rollout = await play(*lines)
    assert rollout.reward.value == 0
    assert await rm.verify_again(rollout, SimpleWeather) == rollout.reward


async def test_what_the_worked_examples_called_counts_for_nothing() -> None:
    task = next(iter(EXAMPLES))
    rollout = await play(f"The weather in {task.city} is {task.expected}.", task=task)
    assert rollout.reward == rm.Reward(0.0, {"answered": 0.0}, {"tool_calls": 0.0})


def test_the_rows_carry_the_tool_as_the_environment_offers_it() -> None:
    for task in EXAMPLES:
        assert task["responses_create_params"]["tools"] == [tool.schema for tool in SimpleWeather.tools.values()]
        assert task["responses_create_params"]["parallel_tool_calls"] is False


@pytest.mark.parametrize("fields", [{"city": "Paris"}, {"expected": "sunny"}])
async def test_a_row_that_no_answer_can_satisfy_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(rm.ConfigError, match="simple_weather: `expected` is"):
        await play("Hello.", task=oslo(**fields))


async def test_it_keeps_the_contract_of_an_environment() -> None:
    await check_environment(
        SimpleWeather,
        EXAMPLES,
        gold=lambda task: [ask(task.city), f"It is {task.expected}."],
        wrong=lambda task: [[f"It is {task.expected}."], [ask(task.city), " and ".join(task.weather.values())]],
    )
