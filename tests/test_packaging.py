"""The pinned requirements keep what pyproject.toml promises."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

# What each file adds, and the file that it begins with.
FILES = {"core.txt": None, "local.txt": "core.txt", "dev.txt": "local.txt"}


def lines(file: str) -> list[str]:
    text = (ROOT / "requirements" / file).read_text("utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def pins(file: str | None) -> list[Requirement]:
    """Every pin of a file, those of the files before it included."""
    if file is None:
        return []
    return pins(FILES[file]) + [Requirement(line) for line in lines(file) if not line.startswith("-r ")]


def wanted(file: str) -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    ranges = PROJECT["dependencies"] + (extras["local"] if file != "core.txt" else [])
    return [Requirement(line) for line in ranges + (extras["dev"] if file == "dev.txt" else [])]


def pinned(file: str, name: str, python: str) -> str | None:
    """The version that a file gives on Linux with that Python."""
    at = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    for pin in pins(file):
        if canonicalize_name(pin.name) == canonicalize_name(name) and (pin.marker is None or pin.marker.evaluate(at)):
            return next(iter(pin.specifier)).version
    return None


@pytest.mark.parametrize("file", FILES)
def test_names_exact_versions_and_no_host(file: str):
    pin = r"[a-z0-9.-]+==[0-9a-z.+]+( ; [a-z_0-9 '<>=.!()]+)?"
    begins = [f"-r {FILES[file]}"] if FILES[file] else []
    assert lines(file)[: len(begins)] == begins
    assert [line for line in lines(file)[len(begins) :] if not re.fullmatch(pin, line, re.IGNORECASE)] == []


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("file", FILES)
def test_pins_are_in_the_ranges(file: str, python: str):
    versions = {str(range_): pinned(file, range_.name, python) for range_ in wanted(file)}
    wrong = {range_: version for range_, version in versions.items() if not _holds(Requirement(range_), version)}
    assert not wrong, f"requirements/{file} and pyproject.toml differ; run scripts/pin"


@pytest.mark.parametrize("file", FILES)
def test_nothing_that_is_needed_floats(file: str):
    names = {canonicalize_name(pin.name) for pin in pins(file)}
    missing = {f"{name} needs {needed}" for name in names for needed in _needs(name)} if names else {"everything"}
    assert not {text for text in missing if canonicalize_name(text.rpartition(" ")[2]) not in names}


def test_every_promised_python_is_named():
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert tuple(named) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def _holds(range_: Requirement, version: str | None) -> bool:
    return version is not None and range_.specifier.contains(version, prereleases=True)


def _needs(name: str) -> list[str]:
    """What an installed package needs here; nothing is known of one that is not installed."""
    try:
        needed = [Requirement(line) for line in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return []
    return [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
