"""`rollmill merge`: several outputs made one."""

from __future__ import annotations

import argparse
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollmill.errors import ConfigError
from rollmill.store.folder import run_folder
from rollmill.store.merge import NAME, Joined, Merged, merge

DESCRIPTION = """\
Join outputs of `rollmill collect` by slot into a new one: groups stay groups, and each row says where it came from.
Nothing is changed in the inputs, and the new output is there whole or not at all."""

EPILOG = """\
Rows for one slot (agent, task, occurrence, repeat) in several inputs are the same planned work: the first with a
reward is kept. Two chunks of one dataset that both contain the same row look like that, too; `rollmill collect` on the
merged output with the whole dataset then plays what is missing, while a double that is kept weighs twice and is never
noticed. If you know that they are different work, --occurrences keeps them, as further occurrences of the task."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "merge",
        help="join outputs by slot into one",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the new output: .jsonl or .jsonl.zst")
    parser.add_argument("inputs", nargs="+", metavar="IN", help="outputs, or patterns such as 'rollouts_*.jsonl'")
    parser.add_argument("--occurrences", action="store_true", help="the same slot in two inputs is not the same work")
    parser.add_argument("--mixed", action="store_true", help="join even where model, sampling or environment differ")
    parser.set_defaults(handler=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    merged = merge(arguments.out, files_of(arguments.inputs), occurrences=arguments.occurrences, mixed=arguments.mixed)
    for line in lines(arguments.out, merged):
        print(line)
    return 0


def lines(out: Path, merged: Merged) -> Iterator[str]:
    """What was merged, as a person reads it."""
    yield from input_lines(merged)
    failed = f", {merged.failed:,} failed slots carried over" if merged.failed else ""
    doubled = sum(one.doubled for one in merged.inputs)
    left_out = f", {doubled:,} doubled left out" if doubled else ""
    yield f"Rollouts: {out} ({merged.rollouts:,} rows in {merged.groups:,} groups{left_out}{failed})"
    yield f"What became of each input: {run_folder(out) / NAME}"


def input_lines(merged: Merged) -> Iterator[str]:
    """What became of each input."""
    width = max(len(one.file) for one in merged.inputs)
    for one in merged.inputs:
        yield f"{one.file:<{width}}  {_said(one)}"
        shown, more = one.places[:3], one.torn + one.foreign + one.garbage - 3
        if shown:
            yield f"{'':<{width}}  skipped {', '.join(shown)}{f', and {more} more' if more > 0 else ''}"


def _said(one: Joined) -> str:
    counts = (
        (one.doubled, "doubled"),
        (one.failed, "failed"),
        (one.torn, "torn"),
        (one.foreign, "of another origin"),
        (one.garbage, "no JSON"),
    )
    return ", ".join([f"{one.kept:,} kept", *(f"{count:,} {what}" for count, what in counts if count)])


def files_of(words: Sequence[str]) -> list[Path]:
    """The files that are named, patterns in order of their names; a file that two patterns match counts once."""
    found: dict[Path, None] = {}
    for word in words:
        matches = [word] if Path(word).exists() or not glob.has_magic(word) else sorted(glob.glob(word))  # noqa: PTH207 (the pattern may be absolute)
        if not matches:
            raise ConfigError(f"{word}: no file matches")
        found |= dict.fromkeys(Path(match) for match in matches)
    return list(found)
