"""Inputs for benchmarks, as many rows as are wanted: `tasks.py single|tools ROWS OUT`.

`single` is a question of about 2 kB; `tools` is one of about 11 kB that offers two tools.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["single", "tools"]

PROSE = "A reader who is in a hurry takes the first option that sounds right; take the one that the text supports. "


def rows(kind: Kind, count: int) -> Iterator[bytes]:
    """Every row is another task, and B is always right."""
    encode = msgspec.json.Encoder().encode
    for number in range(count):
        yield encode(_row(kind, number))


def write(kind: Kind, count: int, path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(row + b"\n" for row in rows(kind, count))
        file.flush()
        # Else the disk is busy with it while something is measured.
        os.fsync(file.fileno())


def _row(kind: Kind, number: int) -> dict[str, Any]:
    options = {letter: f"what {letter} says about question {number}" for letter in "ABCD"}
    lines = [f"{letter}: {text}" for letter, text in options.items()]
    prose = PROSE * (15 if kind == "single" else 58)
    question = "\n".join([f"Question {number}. {prose}", *lines, "Answer with \\boxed{letter}."])
    params: dict[str, Any] = {"input": [{"role": "user", "content": question}]}
    if kind == "tools":
        params |= {"tools": TOOLS, "parallel_tool_calls": False}
    return {
        "responses_create_params": params,
        "options": [{letter: text} for letter, text in options.items()],
        "expected_answer": "B",
        "uuid": f"{kind}-{number}",
    }


def _tool(name: str, purpose: str) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": f"{purpose} {PROSE * 12}",
        "parameters": {
            "type": "object",
            "properties": {"synonym": {"type": "string", "description": PROSE * 6}},
            "required": ["synonym"],
            "additionalProperties": False,
        },
        "strict": True,
    }


TOOLS = [
    _tool("get_synonym_value", "The value of one synonym."),
    _tool("list_synonyms", "All synonyms of one word."),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("single", "tools"))
    parser.add_argument("rows", type=int)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    write(arguments.kind, arguments.rows, arguments.out)


if __name__ == "__main__":
    main()
