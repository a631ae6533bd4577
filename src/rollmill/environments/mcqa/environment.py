"""Multiple-choice questions: which letter the final answer commits to, and whether it is the right one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import rollmill as rm
from rollmill.environments.mcqa.grading import MODES, Options
from rollmill.environments.mcqa.search import last_match
from rollmill.errors import suggestion


class Question(rm.Task):
    """A question with lettered options, one of which is right."""

    options: list[dict[str, str]]
    expected_answer: str
    grading_mode: str = "strict_single_letter_boxed"
    template_metadata: dict[str, Any] | None = None
    uuid: str | None = None


class MCQA(rm.Environment[Question]):
    """Nothing to act on: the final answer names one option in the form that the row asks for."""

    verification = "stateless"
    domain = "knowledge"

    @classmethod
    def check_task(cls, task: Question, config: Mapping[str, Any]) -> None:
        _key(task)

    async def setup(self) -> None:
        self.options, self.expected = _key(self.task)

    async def verify(self, task: Question, response: rm.Response) -> dict[str, Any]:
        letter = await self._letter(response.output_text)
        right = letter == self.expected
        return {"reward": float(right), "extracted_answer": letter, "answered": int(letter is not None)}

    async def _letter(self, text: str) -> str | None:
        pattern = (self.task.template_metadata or {}).get("output_regex")
        if isinstance(pattern, str):
            found = await asyncio.to_thread(last_match, pattern, text)
            if found is not None:
                return self.options.named(found)
        return MODES[self.task.grading_mode](self.options, text)


def _key(task: Question) -> tuple[Options, str]:
    """The options of a question and the letter of the right one. Raises `ConfigError` where the row has no key."""
    options = Options(task.options)
    expected = options.letters.get(task.expected_answer.strip())
    if expected is None:
        known = ", ".join(sorted(set(options.letters.values())))
        raise rm.ConfigError(f"mcqa: expected_answer {task.expected_answer!r} is none of the options {known}")
    if task.grading_mode not in MODES:
        hint = suggestion(task.grading_mode, MODES)
        raise rm.ConfigError(f"mcqa: no grading_mode {task.grading_mode!r}; there are {', '.join(MODES)}{hint}")
    return options, expected
