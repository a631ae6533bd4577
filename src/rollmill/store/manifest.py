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

from rollmill.errors import ConfigError


class Identity(Struct, frozen=True):
    """What must not change within one output. Never URLs, keys, concurrency or limits."""

    model: str
    sampling: dict[str, Any]
    environment: str
    version: str


class Manifest(Struct, frozen=True):
    """The latest run on an output."""

    run: str
    started: str
    rollmill: str
    python: str
    command: list[str]
    agents: dict[str, Identity]
    config: dict[str, Any]


def begin(
    folder: Path, *, version: str, command: list[str], agents: dict[str, Identity], config: dict[str, Any]
) -> Manifest:
    """Write the manifest of a new run. Refuses where an earlier run on this output was another experiment."""
    path = folder / "manifest.json"
    known: dict[str, Identity] = {}
    if path.exists():
        known = msgspec.json.decode(path.read_bytes(), type=Manifest).agents
        for name in known.keys() & agents.keys():
            _refuse_change(folder, name, known[name], agents[name])
    manifest = Manifest(
        run=uuid4().hex[:12],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        rollmill=version,
        python=f"{platform.python_version()} on {sys.platform}",
        command=command,
        agents=known | agents,
        config=config,
    )
    write_whole(path, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return manifest


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file: a reader sees the old one or the new one, never half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def _refuse_change(folder: Path, agent: str, then: Identity, now: Identity) -> None:
    changed = [name for name in Identity.__struct_fields__ if getattr(then, name) != getattr(now, name)]
    if changed:
        differences = "; ".join(f"{name} was {getattr(then, name)!r}, is {getattr(now, name)!r}" for name in changed)
        raise ConfigError(f"{folder} is of another experiment of {agent}: {differences}; use another output")
