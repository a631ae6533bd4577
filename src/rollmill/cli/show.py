"""`rollmill show`: one rollout as a conversation."""

from __future__ import annotations

import argparse
import itertools
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollmill.errors import ConfigError
from rollmill.store.schema import read_row
from rollmill.taskset import read_rows
from rollmill.types import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, Rollout, Task


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("show", help="print a rollout as a conversation")
    parser.add_argument("file", type=Path, help="an output of `rollmill collect`")
    parser.add_argument("--row", type=int, default=1, metavar="N", help="which row, from 1 (default: the first)")
    parser.set_defaults(handler=_show)


def _show(arguments: argparse.Namespace) -> int:
    if arguments.row < 1:
        raise ConfigError("--row counts from 1")
    rows = itertools.islice(read_rows(arguments.file), arguments.row - 1, None)
    number, row = next(rows, (0, b""))
    if not row:
        raise ConfigError(f"{arguments.file} has no row {arguments.row}")
    try:
        rollout = read_row(row, Task)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{arguments.file}, line {number}: not a rollout: {error}") from None
    width = min(shutil.get_terminal_size().columns, 120)
    for line in lines(rollout, width):
        print(line)
    return 0


def lines(rollout: Rollout, width: int) -> Iterator[str]:
    """A rollout as a person reads it."""
    slot = rollout.slot
    yield f"task {slot.task_index}, rollout {slot.rollout_index}: {slot.agent} with {rollout.model}"
    for item in (*rollout.task.prompt, *rollout.response.output):
        speaker, text = _said(item)
        yield from _block(speaker, text, width)
    if rollout.reward is not None:
        yield f"reward {rollout.reward.value:g}{_named(rollout.reward.parts)}{_named(rollout.reward.metrics)}"
    spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in rollout.seconds.items())
    usage = rollout.response.usage
    yield f"ended: {rollout.stop}; {usage.input_tokens} tokens in, {usage.output_tokens} out; {spent}"


def _said(item: Item) -> tuple[str, str]:
    match item:
        case Message():
            return item.role, item.text
        case FunctionCall():
            return "call", f"{item.name}({item.arguments})"
        case FunctionCallOutput():
            return "tool", item.text
        case Reasoning():
            return "thought", item.text
    return "item", bytes(item.json).decode()


def _block(speaker: str, text: str, width: int) -> Iterator[str]:
    indent = " " * 12
    for paragraph in _printable(text).splitlines() or [""]:
        wrapped = textwrap.wrap(paragraph, max(width - len(indent), 20)) or [""]
        for line in wrapped:
            yield f"{speaker:>10}  {line}" if speaker else f"{indent}{line}"
            speaker = ""


def _printable(text: str) -> str:
    """What a model wrote must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def _named(values: dict[str, float]) -> str:
    return f"; {', '.join(f'{name} {value:g}' for name, value in values.items())}" if values else ""
