"""A virtual environment for services with requirements of their own, in which this package is found as well."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from rollmill.config.files import PACKAGE
from rollmill.errors import ConfigError
from rollmill.files import write_whole
from rollmill.services.layout import needed

_MADE_FOR = "rollmill-requirements"
_LAST_LINES = 5


async def python_of(requirements: Path, folder: Path, say: Callable[[str], None], *, as_it_is: bool) -> str:
    """The interpreter of the environment in `folder`, which is made or brought up to date first."""
    python = folder / "bin" / "python"
    wanted = needed(requirements)
    mark = blake2b("\n".join([sys.version, *wanted]).encode(), digest_size=16).hexdigest().encode()
    known = folder / _MADE_FOR
    if python.exists() and (as_it_is or (known.is_file() and known.read_bytes() == mark)):
        return str(python)
    say(f"Installing {requirements} into {folder}")
    await asyncio.to_thread(_make, folder, requirements, wanted)
    write_whole(known, mark)
    return str(python)


def _make(folder: Path, requirements: Path, wanted: list[str]) -> None:
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], requirements)
    _find_us(folder)
    installer = shutil.which("uv")
    install = (
        [installer, "pip", "install", "--quiet", "--python", str(python)]
        if installer
        else [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    )
    _run([*install, *(word for line in wanted for word in line.split())], requirements)


def _find_us(folder: Path) -> None:
    """What is installed there comes first; then this package and what it needs, from where they are installed now."""
    ours = dict.fromkeys([str(PACKAGE.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    write_whole(folder / "lib" / version / "site-packages" / "rollmill.pth", "\n".join(ours).encode() + b"\n")


def _run(words: list[str], requirements: Path) -> None:
    done = subprocess.run(words, cwd=requirements.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:]
        raise ConfigError(f"{requirements} cannot be installed:" + "".join(f"\n  {line}" for line in lines))
