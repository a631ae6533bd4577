"""What an output was made of: its identity, segment by segment, and every run that added to it."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct

from rollmill.errors import ConfigError
from rollmill.files import write_durably

NAME = "manifest.json"
_MOST_RUNS = 1000
_GIT_S = 5.0


class Identity(Struct, frozen=True):
    """What must not change within one segment of an output. Never URLs, keys, concurrency or limits."""

    model: str
    sampling: dict[str, Any]
    environment: str
    version: str
    environment_config: dict[str, Any] = {}
    agent_config: dict[str, Any] = {}
    other_models: dict[str, str] = {}
    """The models that the environment uses itself, a judge for example."""


class Segment(Struct, frozen=True):
    """Rollouts of one identity. A deliberate change of it begins another."""

    agents: dict[str, Identity]


class Run(Struct, frozen=True):
    """One command that added to the output; its rows name it."""

    id: str
    segment: int
    started: str
    command: list[str]
    rollmill: str
    python: str
    host: str
    pid: int
    durability: str
    git: str | None = None
    """The commit of the working directory, with `+changes` where it was not clean."""
    code: dict[str, str] = {}
    """A fingerprint of each environment's source, by agent."""
    inputs: list[str] = []


class Manifest(Struct, frozen=True):
    segments: list[Segment]
    runs: list[Run]
    config: dict[str, Any]
    """Of the latest run, resolved, its secrets masked."""


class Identities:
    """The manifest of a run's folder: it refuses a change of identity, or writes it down as a segment."""

    def __init__(self, folder: Path, *, new_segment: bool = False) -> None:
        self.path = folder / NAME
        self._new_segment = new_segment
        self._known = read_manifest(folder)
        self._agents: dict[str, Identity] = {}

    @property
    def fresh(self) -> bool:
        """Whether nothing is known of what made this output."""
        return self._known is None

    def meet(self, agent: str, identity: Identity) -> None:
        """An agent is about to play. Raises `ConfigError` if another experiment was made with it here."""
        then = self._identities().get(agent)
        if then is not None and then != identity and not self._new_segment:
            raise ConfigError(_refusal(self.path.parent, agent, then, identity))
        self._agents[agent] = identity

    def begin(self, run: Run, config: dict[str, Any]) -> Run:
        """Write the manifest with this run in it."""
        known = self._known or Manifest([], [], {})
        segments = list(known.segments)
        last = segments[-1].agents if segments else {}
        if not segments or any(last.get(name, one) != one for name, one in self._agents.items()):
            segments.append(Segment({**last, **self._agents}))
        else:
            segments[-1] = Segment({**last, **self._agents})
        run = msgspec.structs.replace(run, segment=len(segments))
        self._known = Manifest(segments, [*known.runs, run][-_MOST_RUNS:], config)
        self._write()
        return run

    def note(self) -> None:
        """Agents that were met since the run began are in the manifest, too."""
        if self._known is not None and self._known.segments:
            latest = self._known.segments[-1].agents | self._agents
            if latest != self._known.segments[-1].agents:
                segments = [*self._known.segments[:-1], Segment(latest)]
                self._known = msgspec.structs.replace(self._known, segments=segments)
                self._write()

    def command(self, run: str) -> list[str]:
        """The words of a run that added to the output; none where it is not known."""
        return next((one.command for one in (self._known.runs if self._known else ()) if one.id == run), [])

    def last_code(self) -> Mapping[str, str]:
        """The fingerprints that the environments' sources had when they last played here."""
        found: dict[str, str] = {}
        for run in self._known.runs if self._known else ():
            found |= run.code
        return found

    def _identities(self) -> Mapping[str, Identity]:
        return self._known.segments[-1].agents if self._known and self._known.segments else {}

    def _write(self) -> None:
        write_durably(self.path, msgspec.json.format(msgspec.json.encode(self._known), indent=2) + b"\n")


def new_run(
    *, version: str, command: Sequence[str], durability: str, code: Mapping[str, str], inputs: Sequence[str]
) -> Run:
    """A run by this process, in this working directory."""
    return Run(
        id=uuid4().hex[:12],
        segment=1,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        rollmill=version,
        python=f"{platform.python_version()} on {sys.platform}",
        host=socket.gethostname(),
        pid=os.getpid(),
        durability=durability,
        git=_git_state(),
        code=dict(code),
        inputs=list(inputs),
    )


def read_manifest(folder: Path) -> Manifest | None:
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a manifest of this version: {error}; move it away to go on without") from None


def changes(then: Identity, now: Identity) -> str:
    """The fields in which two identities differ, as people read them."""
    changed = [field for field in Identity.__struct_fields__ if getattr(then, field) != getattr(now, field)]
    return "; ".join(f"{field} was {getattr(then, field)!r}, is {getattr(now, field)!r}" for field in changed)


def _refusal(folder: Path, agent: str, then: Identity, now: Identity) -> str:
    return (
        f"{folder} is of another experiment of {agent}: {changes(then, now)}; use another output, or +new_segment=true "
        "to go on in this one"
    )


def _git_state() -> str | None:
    """What the working directory's repository stands at, if it is one and git is here."""
    commit = _git("rev-parse", "HEAD")
    return commit and (f"{commit}+changes" if _git("status", "--porcelain", "--untracked-files=no") else commit)


def _git(*words: str) -> str | None:
    command = ("git", "--no-optional-locks", *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
