"""What a run was: its configuration, versions and identity, written beside the output before the first rollout."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct

from rollmill.errors import ConfigError, StoreError

_NAME = "manifest.json"


class Identity(Struct, frozen=True):
    """What must not change within one output. Never URLs, keys, concurrency or limits."""

    model: str
    sampling: dict[str, Any]
    environment: str
    version: str
    environment_config: dict[str, Any] = {}
    agent_config: dict[str, Any] = {}
    other_models: dict[str, str] = {}
    """The models that the environment uses itself, a judge for example."""


class Manifest(Struct, frozen=True):
    """The latest run on an output."""

    run: str
    started: str
    rollmill: str
    python: str
    command: list[str]
    agents: dict[str, Identity]
    config: dict[str, Any]


def refuse_change(folder: Path, agents: dict[str, Identity]) -> None:
    """Raise `ConfigError` where what is in this folder came from another experiment."""
    known = _known(folder)
    for name in known.keys() & agents.keys():
        then, now = known[name], agents[name]
        changed = [field for field in Identity.__struct_fields__ if getattr(then, field) != getattr(now, field)]
        if changed:
            differences = "; ".join(f"{f} was {getattr(then, f)!r}, is {getattr(now, f)!r}" for f in changed)
            raise ConfigError(f"{folder} is of another experiment of {name}: {differences}; use another output")


def begin(
    folder: Path, *, version: str, command: list[str], agents: dict[str, Identity], config: dict[str, Any]
) -> Manifest:
    """Write the manifest of a new run; agents of earlier runs on the same output stay in it."""
    refuse_change(folder, agents)
    manifest = Manifest(
        run=uuid4().hex[:12],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        rollmill=version,
        python=f"{platform.python_version()} on {sys.platform}",
        command=command,
        agents=_known(folder) | agents,
        config=config,
    )
    write_whole(folder / _NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file: a reader sees the old one or the new one, never half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def _known(folder: Path) -> dict[str, Identity]:
    path = folder / _NAME
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest).agents
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a manifest of this version: {error}") from None
