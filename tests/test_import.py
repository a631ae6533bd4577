"""Importing does nothing but import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROBE = """
import json, logging, os, sys, threading
from time import perf_counter

before = dict(os.environ)
began = perf_counter()
import rollmill
seconds = perf_counter() - began

loggers = [logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)]
print(json.dumps({
    "seconds": seconds,
    "modules": sorted(sys.modules),
    "handlers": [repr(handler) for logger in loggers for handler in logger.handlers],
    "threads": [thread.name for thread in threading.enumerate()],
    "environment": dict(os.environ) == before,
}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def seen(home: Path) -> dict[str, Any]:
    """What a process finds after `import rollmill`, with warnings as errors, at home and at work in an empty folder."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "COV_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE],
        cwd=home,
        env={**kept, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_makes_no_file(seen: dict[str, Any], home: Path):
    assert list(home.rglob("*")) == []


def test_changes_no_environment_variable(seen: dict[str, Any]):
    assert seen["environment"]


def test_adds_no_log_handler(seen: dict[str, Any]):
    assert seen["handlers"] == []


def test_starts_no_thread(seen: dict[str, Any]):
    assert seen["threads"] == ["MainThread"]


@pytest.mark.parametrize(
    "module", ["aiohttp", "datasets", "omegaconf", "regex", "rollmill.launch", "tqdm", "uvloop", "xllamacpp", "yaml"]
)
def test_leaves_what_only_parts_need_alone(seen: dict[str, Any], module: str):
    assert module not in seen["modules"]


def test_time_is_shown(seen: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    with capsys.disabled():
        print(f"\nimport rollmill: {1000 * seen['seconds']:.0f} ms, {len(seen['modules'])} modules")
