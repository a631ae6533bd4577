"""`rollmill render` and `ng_materialize_prompts`: rows get their prompts from templates."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from rollmill.cli.ng import Ng
from rollmill.cli.paths import existing, output
from rollmill.cli.spelling import add_options, spelled
from rollmill.collection.report import counted
from rollmill.config import options_from
from rollmill.data.prompts import Prompt, load_prompt
from rollmill.data.rollouts import read_fields
from rollmill.data.scratch import scratch
from rollmill.data.written import write_rows
from rollmill.taskset import read_rows
from rollmill.types import encode

ABOUT = "Make what the model is asked from the fields of each row, by templates."


class RenderOptions(Struct, frozen=True, kw_only=True):
    """What goes in, and what comes out."""

    input_jsonl_fpath: str
    """The rows, without prompts of their own (.jsonl, .gz or .zst)."""
    prompt_config: str
    """A YAML file with the template `user`, and if need be `system`: `{field}` stands for a field of the row, `{{` and
    `}}` for braces."""
    output_jsonl_fpath: str
    """Where the rows go with their prompts in `responses_create_params.input`, and the file's name in
    `prompt_config_used`."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("render", help="make the prompts of rows from templates", description=ABOUT)
    flags = {"--prompt": "prompt_config", "--out": "output_jsonl_fpath"}
    add_options(parser, RenderOptions, flags, names="ROWS", about="a file of rows")
    parser.set_defaults(handler=_render)


def _render(arguments: argparse.Namespace) -> int:
    asked = spelled(arguments)
    return _run(asked.words, asked.named("input_jsonl_fpath"))


def _run(words: Sequence[str], initial: Mapping[str, Any] | None = None) -> int:
    options = options_from(words, RenderOptions, initial)
    rows = existing(options.input_jsonl_fpath, "input_jsonl_fpath")
    prompt = load_prompt(existing(options.prompt_config, "prompt_config"))
    out = output(options.output_jsonl_fpath, "output_jsonl_fpath", rows, prompt.path)
    with scratch(out) as folder:
        count = write_rows(out, folder, _rendered(rows, prompt, options.prompt_config))
    print(f"Materialized {counted(count, 'row')} to {out}")
    return 0


def _rendered(rows: Path, prompt: Prompt, name: str) -> Iterator[dict[str, Raw]]:
    used = Raw(encode(name))
    for line, content in read_rows(rows):
        place = f"{rows}, line {line}"
        yield prompt.rendered(read_fields(content, place), place) | {"prompt_config_used": used}


NG_MATERIALIZE_PROMPTS = Ng(about=ABOUT, options=RenderOptions, run=_run)
