"""One question about the weather, which only a tool can answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import rollmill as rm


class Forecast(rm.Task):
    """A city, what the weather is like there and elsewhere, and the word that an answer has to say."""

    city: str
    expected: str
    weather: dict[str, str]


class SimpleWeather(rm.Environment[Forecast]):
    """Ask the tool, then tell the user what it said."""

    verification = "replay"
    domain = "agent"

    @classmethod
    def check_task(cls, task: Forecast, config: Mapping[str, Any]) -> None:
        if not _says(task.weather.get(task.city, ""), task.expected):
            wanted = f"`expected` is {task.expected!r}"
            raise rm.ConfigError(f"simple_weather: {wanted}, which `weather` does not say of {task.city!r}")

    async def setup(self) -> None:
        self.check_task(self.task, self.config)
        self.fetched: set[str] = set()
        self.cities = {city.casefold(): city for city in self.task.weather}

    @rm.tool
    def get_weather(self, city: str) -> str:
        """Tell what the weather is like in a city."""
        known = self.cities.get(city.strip().casefold())
        if known is None:
            return f"no weather for {city!r}; the cities are {', '.join(self.task.weather)}"
        self.fetched.add(known)
        return f"The weather in {known} is {self.task.weather[known]}."

    @rm.reward
    def answered(self) -> bool:
        said = self.trajectory.answer
        knows = self.task.city in self.fetched
        return knows and _says(said, self.task.expected) and not any(_says(said, other) for other in self._elsewhere())

    @rm.reward(weight=0)
    def tool_calls(self) -> int:
        return sum(isinstance(item, rm.FunctionCall) for item in self.trajectory.items)

    def _elsewhere(self) -> list[str]:
        """The weather of other cities: an answer that names every weather there is would always name the right one."""
        here = self.task.weather[self.task.city]
        return [weather for weather in self.task.weather.values() if not _says(here, weather)]


def _says(text: str, word: str) -> bool:
    """Whether a text says a word, whole and not denied."""
    said = rf"(?<!\w)(?<!\bno )(?<!\bnot )(?<!n't ){re.escape(word)}(?!\w)"
    return re.search(said, text, re.IGNORECASE) is not None
