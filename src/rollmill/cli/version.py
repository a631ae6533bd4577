"""`rollmill version` and `ng_version`: what is installed here, for a report of a problem."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import rollmill
from rollmill.cli.ng import Ng
from rollmill.config import options_from

CONTRACT = "0.5.1"
"""The version of NeMo Gym whose public contract this is an implementation of."""

ABOUT = "Print the versions of Rollmill, of Python and of what they need, and the machine that they are on."

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:.*\bextra == ['\"](?P<extra>[\w-]+))?")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("version", help="what is installed, and where", description=ABOUT)
    parser.add_argument("--json", action="store_true", help="for machines: one object")
    parser.set_defaults(handler=_version)


class VersionOptions(Struct, frozen=True):
    """How to say it."""

    json: bool = False
    """Print one JSON object, for machines."""


class System(Struct, frozen=True):
    """The machine."""

    os: str
    platform: str
    architecture: str
    processor: str
    cpus: int | None
    memory_gb: float


class Version(Struct, frozen=True):
    """What is installed, under NeMo Gym's keys; `nemo_gym` is the version of its contract."""

    rollmill: str
    nemo_gym: str
    python: str
    python_path: str
    installation_path: str
    dependencies: dict[str, str | None]
    system: System


def version() -> Version:
    return Version(
        rollmill=rollmill.__version__,
        nemo_gym=CONTRACT,
        python=platform.python_version(),
        python_path=sys.executable,
        installation_path=str(Path(str(rollmill.__file__)).parent),
        dependencies=dict(_dependencies()),
        system=System(
            os=f"{platform.system()} {platform.release()}",
            platform=platform.platform(),
            architecture=platform.machine(),
            processor=platform.processor() or "unknown",
            cpus=os.cpu_count(),
            memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 2),
        ),
    )


def _dependencies() -> Iterator[tuple[str, str | None]]:
    """What this package needs and may need, each with its version, or None where it is not installed."""
    for line in metadata.requires("rollmill") or []:
        requirement = _REQUIREMENT.match(line)
        if requirement and requirement["extra"] != "dev":
            try:
                yield requirement["name"], metadata.version(requirement["name"])
            except metadata.PackageNotFoundError:
                yield requirement["name"], None


def _version(arguments: argparse.Namespace) -> int:
    return _show(VersionOptions(json=arguments.json))


def _show(options: VersionOptions) -> int:
    found = version()
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print("\n".join(lines(found)))
    return 0


def lines(found: Version) -> Iterator[str]:
    system = found.system
    yield f"rollmill {found.rollmill}, which implements the contract of NeMo Gym {found.nemo_gym}"
    yield f"  installed in {found.installation_path}"
    yield f"python {found.python}"
    yield f"  {found.python_path}"
    yield "dependencies"
    yield from (f"  {name} {number or 'is not installed'}" for name, number in found.dependencies.items())
    yield f"system {system.os}, {system.architecture}"
    yield f"  {system.platform}"
    yield f"  {system.cpus} CPUs ({system.processor}), {system.memory_gb:g} GB of memory"


def _ng(words: Sequence[str]) -> int:
    return _show(options_from(words, VersionOptions))


NG_VERSION = Ng(about=ABOUT, options=VersionOptions, run=_ng)
