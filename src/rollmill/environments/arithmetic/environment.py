"""Sums and differences of small numbers, made without end."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

import rollmill as rm


class Sum(rm.Task):
    """Two numbers to add or subtract."""

    answer: int


class Arithmetic(rm.Environment[Sum]):
    """Nothing to act on: the last number of the final answer is right, or it is not."""

    verification = "stateless"
    domain = "math"

    @classmethod
    def tasks(cls, config: Mapping[str, Any], seed: int) -> Iterator[Sum]:
        recipe = _recipe(config)
        return iter(rm.from_rows(lambda: _rows(recipe, random.Random(seed)), Sum))

    @rm.reward
    def correct(self) -> bool:
        return result(self.trajectory.answer) == self.task.answer

    @rm.reward(weight=0)
    def answered(self) -> bool:
        return _NUMBER.search(self.trajectory.answer) is not None


class _Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    largest: Annotated[int, Meta(ge=1, le=99)] = 20
    operations: Annotated[tuple[Literal["+", "-"], ...], Meta(min_length=1)] = ("+", "-")


def _recipe(config: Mapping[str, Any]) -> _Recipe:
    try:
        return msgspec.convert(dict(config), _Recipe)
    except msgspec.ValidationError as error:
        raise rm.ConfigError(f"arithmetic: {error}") from None


def _rows(recipe: _Recipe, draw: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        operation = draw.choice(recipe.operations)
        one, other = (draw.randint(1, recipe.largest) for _ in range(2))
        # A difference is never negative: a minus sign is one more thing that a small model gets wrong.
        left, right = (max(one, other), min(one, other)) if operation == "-" else (one, other)
        yield _row(left, operation, right)


def _row(left: int, operation: str, right: int) -> dict[str, Any]:
    question = f"What is the result of {left} {operation} {right}? Answer with the number in one short sentence."
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}], "max_output_tokens": 32},
        "answer": left + right if operation == "+" else left - right,
    }


# What is written together is one token, so that 4.2, 10:42 and 1,2,3 are no integers.
_NUMBER = re.compile(r"(?<![\w.])[-\u2212]?[0-9]+(?:[.,:/][0-9]+)*(?!\w)")
_INTEGER = re.compile(r"[-\u2212]?[0-9]{1,9}")
_OPERATOR = re.compile(r"\s*[-+*/\u2212\u00d7\u00f7]\s*")
_COMMAS = re.compile(r"[\s,;|]*")
_CHOICE = re.compile(r".*\bor\b.*|[\s,]*\band\b\s*", re.DOTALL | re.IGNORECASE)


def result(text: str) -> int | None:
    """The integer on which a text ends, as its result.

    None where it is an operand ("17 + 25"), one of several offered ("41, 42", "41 or 42"), or no integer ("42.5").
    """
    numbers = list(_NUMBER.finditer(text))
    if not numbers or not _INTEGER.fullmatch(numbers[-1][0]):
        return None
    gaps = [text[one.end() : other.start()] for one, other in pairwise(numbers[-3:])]
    if gaps and _offers(*reversed(gaps)):
        return None
    return int(numbers[-1][0].replace("\u2212", "-"))


def _offers(gap: str, gap_before: str = "") -> bool:
    """Whether the text between the last two numbers makes the last one an operand, or one of several."""
    if _OPERATOR.fullmatch(gap) or _CHOICE.fullmatch(gap):
        return True
    # In "17 + 25\n42" the last number stands alone after a sum, which is no list.
    return _COMMAS.fullmatch(gap) is not None and not _OPERATOR.fullmatch(gap_before)
