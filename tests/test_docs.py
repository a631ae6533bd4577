"""The documentation cannot drift: its examples run, its options exist, its links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from rollmill.cli import collect, main, ng
from rollmill.collection.options import CollectOptions

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
ENVIRONMENTS = sorted(path.parent for path in (ROOT / "src/rollmill/environments").glob("*/__init__.py"))
PROSE = [*PAGES, *ROOT.glob("C*.md"), *(ROOT / "src").rglob("*.md")]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*).*?\n(?P<code>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE)
SKIPPED = re.compile(r"<!-- not run: \w(?:(?!-->).)*-->\s*\Z", re.DOTALL)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Examples.


def examples(text: str) -> Iterator[tuple[int, str]]:
    """The Python blocks of a page that are to run, each with the number of its first line."""
    for block in FENCE.finditer(text):
        if block["language"] == "python" and not SKIPPED.search(text[: block.start()]):
            yield text.count("\n", 0, block.start("code")), textwrap.dedent(block["code"])


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in a notebook: one after another, with one namespace, one event loop, and `await` anywhere."""
    monkeypatch.chdir(tmp_path)
    # Records look up the names in their annotations in the module that they say they come from.
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    with asyncio.Runner() as runner:
        for line, code in examples(page.read_text("utf-8")):
            # Empty lines ahead, so that a traceback names the line of the page.
            source = "\n" * line + code
            ready = compile(source, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if ready.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(ready, vars(module)))
            else:
                exec(ready, vars(module))


def test_examples_are_found():
    page = "```python\na = 1\n```\n<!-- not run: needs a key -->\n```python\nb\n```\n- x\n  ```python\n  c\n  ```\n"
    page += "<!-- not run: -->\n```python\nd\n```\n"
    assert list(examples(page)) == [(1, "a = 1\n"), (9, "c\n"), (13, "d\n")]


# Options.


def test_every_option_of_a_collection_is_documented():
    text = "".join(page.read_text("utf-8") for page in DOCS)
    names = [field.encode_name for field in msgspec.structs.fields(CollectOptions)]
    missing = [name for name in names if not re.search(rf"[`+]{name}\b", text)]
    assert not missing, f"docs/ does not mention, as `name` or +name: {', '.join(missing)}"


def test_every_flag_of_collect_is_documented():
    commands = argparse.ArgumentParser().add_subparsers()
    collect.add_parser(commands)
    flags = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", commands.choices["collect"].format_help()))
    text = "".join(page.read_text("utf-8") for page in DOCS)
    missing = sorted(flag for flag in flags - {"--help"} if not re.search(rf"{flag}(?![\w-])", text))
    assert not missing, f"docs/ does not mention: {', '.join(missing)}"


def test_every_command_is_documented():
    text = (ROOT / "docs/commands.md").read_text("utf-8")
    names = [*main.COMMANDS, *(f"ng_{name}" for name in ng.COMMANDS)]
    missing = [name for name in names if not re.search(rf"^\|.*`{name}\b", text, re.MULTILINE)]
    assert not missing, f"the table of docs/commands.md does not have: {', '.join(missing)}"


# Links.


@pytest.mark.parametrize("page", PROSE, ids=relative)
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))
    targets = re.findall(r"\]\(<?([^)\s>]+)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    paths = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    missing = [path for path in paths if path and not (page.parent / path).exists()]
    assert not missing, f"{relative(page)} links to what is not there: {', '.join(missing)}"


# Environments.


@pytest.mark.parametrize("folder", ENVIRONMENTS, ids=lambda folder: folder.name)
def test_an_environment_is_complete(folder: Path):
    for needed in ("README.md", f"configs/{folder.name}.yaml", "data/example.jsonl"):
        assert (folder / needed).is_file(), f"{relative(folder)} has no {needed}"
    assert list((folder / "tests").glob("test_*.py")), f"{relative(folder)}/tests has no tests"
    rows = [row for row in (folder / "data/example.jsonl").read_bytes().splitlines() if row.strip()]
    assert len(rows) == 5, f"{relative(folder)}/data/example.jsonl: five rows, not {len(rows)}"
    for row in rows:
        msgspec.json.decode(row, type=dict)
