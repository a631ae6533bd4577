"""`rollmill test`, `ng_test` and `ng_test_all`: whether environments keep their contract and pass their own tests."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from rollmill.cli import contract, examples
from rollmill.cli.folders import Folder, every_folder, folder_of
from rollmill.cli.guard import SOME_FAILED
from rollmill.cli.ng import Ng
from rollmill.cli.table import table, terminal_width
from rollmill.config import options_from
from rollmill.errors import ConfigError

Result = Literal["passed", "failed", "missing"]
"""Missing: the folder has no tests of its own."""

ABOUT = "Check that an environment keeps its contract, and run the tests in its folder."
ABOUT_ALL = "Test every folder with a README.md: the package's environments, and those beside the working directory."
EXIT_CODES = "Exit codes: 0 all passed; 1 something failed, or one folder was asked for and has no tests; 2 wrong use."

_NO_TESTS = 5
_ASYNCHRONOUS = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
_WITHOUT_PYTEST = "pytest is not installed: {python} -m pip install pytest pytest-asyncio"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "test",
        usage="rollmill test (NAME | --all) [--data] [+key=value …]",
        help="check an environment's contract, and run its tests",
        description=f"{ABOUT} The options of ng_test and, with --all, of ng_test_all can be given as +key=value.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="an environment, or TYPE/NAME for another folder")
    parser.add_argument("--all", action="store_true", help="every folder that has a README.md")
    parser.add_argument("--data", action="store_true", help="check the files of examples, too")
    parser.set_defaults(handler=_from_flags, options=TestAllOptions)


class TestOptions(Struct, frozen=True, kw_only=True):
    """What to test."""

    entrypoint: Annotated[str, Meta(min_length=1)]
    """The folder, as TYPE/NAME: resources_servers/shop, or one beside the working directory."""
    should_validate_data: bool = False
    """Check data/ too: five examples, their metrics, five rollouts, and nothing in conflict."""


class TestAllOptions(Struct, frozen=True, kw_only=True):
    """Which part of all, and what counts as a failure."""

    fail_on_total_and_test_mismatch: bool = False
    """Fail where a folder has no tests of its own."""
    delete_venvs_after_each_test: bool = False
    """Delete the .venv of a folder once it is tested."""
    num_shards: Annotated[int, Meta(ge=1)] = 1
    """Into how many parts all folders are divided, to be tested on several machines."""
    shard_index: Annotated[int, Meta(ge=0)] = 0
    """Which of these parts to test, from 0."""


def _from_flags(arguments: argparse.Namespace) -> int:
    names = [word for word in arguments.words if "=" not in word]
    words = [word for word in arguments.words if "=" in word]
    if arguments.all:
        if names or arguments.data:
            raise ConfigError("--all stands alone: it takes no NAME, and --data goes with one")
        return _test_all(options_from(words, TestAllOptions))
    if len(names) > 1:
        raise ConfigError(f"one environment at a time, or --all: {', '.join(names)}")
    words += [f"+entrypoint={_entrypoint(name)}" for name in names]
    return _test(options_from([*words, *(["+should_validate_data=true"] if arguments.data else [])], TestOptions))


def _entrypoint(name: str) -> str:
    if "/" in name.rstrip("/"):
        return name
    return f"environments/{name}" if Path("environments", name).is_dir() else f"resources_servers/{name}"


def _test(options: TestOptions) -> int:
    folder = folder_of(options.entrypoint)
    _refuse_without_pytest(_python(folder))
    result = _tested(folder, data=options.should_validate_data)
    return 0 if result == "passed" else SOME_FAILED


def _test_all(options: TestAllOptions) -> int:
    if options.shard_index >= options.num_shards:
        raise ConfigError(f"shard_index: {options.num_shards} shards count from 0 to {options.num_shards - 1}")
    _refuse_without_pytest(sys.executable)
    folders = sorted(every_folder(), key=lambda folder: folder.label)
    described = [folder for folder in folders if (folder.path / "README.md").is_file()]
    results: dict[str, tuple[Result, float]] = {}
    for folder in described[options.shard_index :: options.num_shards]:
        began = time.perf_counter()
        results[folder.label] = _tested(folder), time.perf_counter() - began
        if options.delete_venvs_after_each_test and folder.own:
            _delete_venv(folder.path / ".venv")
    for folder in folders:
        if folder not in described:
            print(f"{folder.label} has no README.md and was not tested")
    print("\n".join(lines(results, terminal_width())))
    ends = [result for result, _ in results.values()]
    if options.fail_on_total_and_test_mismatch and "missing" in ends:
        return SOME_FAILED
    return SOME_FAILED if "failed" in ends else 0


def lines(results: dict[str, tuple[Result, float]], width: int) -> Iterator[str]:
    """Each folder with its time, and by what became of it."""
    rows = [(label, f"{seconds:.1f} s", result) for label, (result, seconds) in results.items()]
    yield from table(("folder", "time", "result"), rows, width)
    for kind in get_args(Result):
        names = [label for label, (result, _) in results.items() if result == kind]
        said = f"{kind} {len(names)} of {len(results)}{': ' if names else ''}{', '.join(names)}"
        yield from textwrap.wrap(said, width, subsequent_indent="  ", break_on_hyphens=False)


def _tested(folder: Folder, *, data: bool = False) -> Result:
    """Everything there is to test of a folder, said as it comes out."""
    print(f"{folder.label} in {folder.path}")
    finding = contract.check(folder)
    print(f"contract: {'' if finding.kept else 'broken: '}{finding.said}", flush=True)
    result = _own_tests(folder)
    faults = list(examples.faults(folder.path)) if data else []
    for fault in faults:
        print(f"data: {fault}")
    if faults or not finding.kept:
        result = "failed"
    said = "it has no tests of its own: tests/test_*.py" if result == "missing" else result
    print(f"{folder.label}: {said}\n", flush=True)
    return result


def _own_tests(folder: Folder) -> Result:
    """pytest in a process of its own, at home in the folder."""
    python = _python(folder)
    if not _finds(python, "pytest"):
        print(f"tests: {_WITHOUT_PYTEST.format(python=python)}")
        return "failed"
    # What the repository around a folder says of asynchronous tests may not have come with it.
    mode = _ASYNCHRONOUS if _finds(python, "pytest_asyncio") else ()
    # Nobody looks for a cache where this package is installed.
    cache = () if folder.own else ("-p", "no:cacheprovider")
    command = (python, "-m", "pytest", *cache, *mode, ".")
    done = subprocess.run(command, cwd=folder.path, env=_environment(folder), check=False)  # noqa: S603 - our own words
    if done.returncode == _NO_TESTS:
        return "missing"
    return "failed" if done.returncode else "passed"


def _python(folder: Folder) -> str:
    """The folder's own, where somebody made it one."""
    own = folder.path / ".venv" / "bin" / "python"
    return str(own) if folder.own and own.exists() else sys.executable


def _finds(python: str, module: str) -> bool:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run((python, "-c", probe), check=False).returncode == 0  # noqa: S603 - our own words


def _refuse_without_pytest(python: str) -> None:
    if not _finds(python, "pytest"):
        raise ConfigError(_WITHOUT_PYTEST.format(python=python))


def _environment(folder: Folder) -> dict[str, str]:
    """A folder's tests import its code by itself, or by its path from the working directory."""
    paths = [str(folder.path), str(Path.cwd())] if folder.own else []
    paths += [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(os.environ)


def _delete_venv(folder: Path) -> None:
    if (folder / "pyvenv.cfg").is_file():
        shutil.rmtree(folder)


def _ng(words: Sequence[str]) -> int:
    return _test(options_from(words, TestOptions))


def _ng_all(words: Sequence[str]) -> int:
    return _test_all(options_from(words, TestAllOptions))


NG_TEST = Ng(about=ABOUT, options=TestOptions, run=_ng, more=EXIT_CODES)
NG_TEST_ALL = Ng(about=ABOUT_ALL, options=TestAllOptions, run=_ng_all, more=EXIT_CODES)
