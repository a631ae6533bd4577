"""The input of the crash tests: errands as rows, made from their numbers alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec


def secret(number: int) -> str:
    return hashlib.blake2b(str(number).encode(), digest_size=6).hexdigest()


def worth(number: int) -> float:
    """Between 0 and 1, neither of them, and another for every number below ten million."""
    return (number * 7_654_321 % 9_999_991 + 1) / 10_000_000


def errand(number: int, **more: Any) -> dict[str, Any]:
    asked = {"input": [{"role": "user", "content": f"Errand {number}"}]}
    return {
        "responses_create_params": asked,
        "number": number,
        "secret": secret(number),
        "worth": worth(number),
        **more,
    }


def errands(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [errand(number) for number in range(first, first + count)]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
    return path


def identity(row: dict[str, Any]) -> str:
    """How the output names the task of a row, as its contract says: a hash of the row without `_ng_*`."""
    own = {key: value for key, value in row.items() if not key.startswith("_ng_")}
    return hashlib.blake2b(msgspec.json.encode(own, order="sorted"), digest_size=16).hexdigest()
