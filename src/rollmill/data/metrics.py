"""What a dataset holds, counted row by row, under NeMo Gym's names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Raw, Struct, field

from rollmill.quality.rows import number
from rollmill.types import decode

_NOT_COUNTED = ("responses_create_params", "response")


class Numbers(Struct):
    """A stream of numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Of the distances from the mean."""
    least: float = 0.0
    most: float = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.merge(Numbers(times, value, 0.0, value, value))

    def merge(self, other: Numbers) -> None:
        if not other.count:
            return
        self.least = min(self.least, other.least) if self.count else other.least
        self.most = max(self.most, other.most) if self.count else other.most
        both, away = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + away * away * self.count * other.count / both
        self.mean += away * other.count / both
        self.count = both

    def said(self) -> dict[str, float]:
        deviation = math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0
        return {
            "Total # non-null values": self.count,
            "Average": _rounded(self.mean),
            "Min": _rounded(self.least),
            "Max": _rounded(self.most),
            "Standard deviation": _rounded(deviation),
        }


class Texts(Struct):
    """A stream of texts; of each, only a hash is kept."""

    count: int = 0
    hashes: set[bytes] = field(default_factory=set)

    def add(self, text: str, times: int) -> None:
        self.count += times
        self.hashes.add(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())

    def merge(self, other: Texts) -> None:
        self.count += other.count
        self.hashes |= other.hashes

    def said(self) -> dict[str, int]:
        return {"unique_count": len(self.hashes), "total_count": self.count}


class Metrics:
    """Of one dataset, or of several together."""

    def __init__(self) -> None:
        self.examples = 0
        self._asked = {name: Numbers() for name in ("tools", "words", "turns", "temperature")}
        self._numbers: dict[str, Numbers] = {}
        self._texts: dict[str, Texts] = {}

    def add(self, fields: Mapping[str, Raw], times: int = 1) -> None:
        """Count a row as often as it stands in what is prepared."""
        self.examples += times
        for name, value in _asked(decode(fields["responses_create_params"])).items():
            self._asked[name].add(value, times)
        for name, raw in fields.items():
            if name not in _NOT_COUNTED:
                value = decode(raw)
                for one in value if isinstance(value, list) else (value,):
                    self._add_value(name, one, times)

    def merge(self, other: Metrics) -> None:
        self.examples += other.examples
        for name, numbers in other._asked.items():
            self._asked[name].merge(numbers)
        for name, numbers in other._numbers.items():
            self._numbers.setdefault(name, Numbers()).merge(numbers)
        for name, texts in other._texts.items():
            self._texts.setdefault(name, Texts()).merge(texts)

    def said(self) -> dict[str, Any]:
        return {
            "Number of examples": self.examples,
            "Number of tools": self._asked["tools"].said(),
            "Json-dumped number of words (proxy for token count)": self._asked["words"].said(),
            "Number of turns": self._asked["turns"].said(),
            "Temperature": self._asked["temperature"].said(),
            # A field that has both is text: not all of it is a number.
            **{name: one.said() for name, one in sorted((self._numbers | self._texts).items())},
        }

    def _add_value(self, name: str, value: Any, times: int) -> None:
        if isinstance(value, str):
            self._texts.setdefault(name, Texts()).add(value, times)
        elif (found := number(value)) is not None:
            self._numbers.setdefault(name, Numbers()).add(found, times)


def _asked(params: Mapping[str, Any]) -> dict[str, float]:
    """What there is of it."""
    given = params.get("input")
    users = 1 if isinstance(given, str) else sum(item.get("role") == "user" for item in given or ())
    found = {
        "tools": None if params.get("tools") is None else len(params["tools"]),
        # As Python's own encoder spaces it: that is what the number is a count of.
        "words": len(json.dumps(params).split()),
        "turns": users or None,
        "temperature": params.get("temperature"),
    }
    return {name: one for name, value in found.items() if (one := number(value)) is not None}


def _rounded(value: float) -> float:
    return round(value, 2 if abs(value) >= 1 else 3)
