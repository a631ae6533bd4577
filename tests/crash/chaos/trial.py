"""Attempts at breaking a collection: each with a name, a folder and dice of its own, so that it can be had again."""

from __future__ import annotations

import math
import random
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from msgspec import Struct, field
from tests.crash.script import Asked
from tests.crash.served import Served, served

T = TypeVar("T")

_SAY_EVERY_S = 10.0


class Outcome(NamedTuple):
    """What an attempt that broke nothing came to."""

    rework: int | None = None
    """Rollouts that were played, and played again."""
    recovery_s: float | None = None
    """From the start of the command that went on to its first model call."""
    measured: Mapping[str, float] = {}
    """Numbers that this part alone has."""


class Failure(NamedTuple):
    name: str
    text: str
    folder: Path
    again: str
    """The command that makes this attempt once more."""


class Place(NamedTuple):
    """Where an attempt is made."""

    folder: Path
    """Empty, and removed afterwards if nothing broke."""
    server: Served
    chance: random.Random
    began: float

    @property
    def asked(self) -> list[Asked]:
        """What the model was asked in this attempt."""
        return [one for one in self.server.asked() if one.at >= self.began]


Attempt = Callable[[Place], Outcome]


class Outcomes(Struct):
    """What became of all attempts of a part."""

    survived: list[Outcome] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.survived) + len(self.failures)

    @property
    def rework(self) -> int | None:
        return max((one.rework for one in self.survived if one.rework is not None), default=None)

    @property
    def recovery_s(self) -> float | None:
        return max((one.recovery_s for one in self.survived if one.recovery_s is not None), default=None)

    def measured(self, name: str) -> list[float]:
        return [one.measured[name] for one in self.survived if name in one.measured]


class Trial(Struct, frozen=True):
    """What all parts are asked for."""

    folder: Path
    seed: int
    scale: float
    only: str = ""

    def count(self, full: int, least: int = 1) -> int:
        return max(least, round(full * self.scale))

    def some(self, everything: Sequence[T]) -> list[T]:
        """All of it, or at a smaller scale as much of it, evenly spread."""
        if self.only:
            return list(everything)
        step = max(1.0, 1 / self.scale)
        return [everything[math.floor(place * step)] for place in range(math.ceil(len(everything) / step))]

    def chance(self, part: str, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{part}/{name}")

    def again(self, part: str, name: str) -> str:
        words = ["--seed", str(self.seed), "--scale", f"{self.scale:g}", "--only", name]
        return shlex.join([".venv/bin/python", "-m", "tests.crash.chaos", part, *words])

    def scratch(self, part: str, name: str) -> Path:
        """A new folder for something that is made before the attempts."""
        return _emptied(self.folder / part / name)

    def play(self, part: str, attempts: Mapping[str, Attempt], *, lanes: int = 2, **script: object) -> Outcomes:
        """Make them all, so many at once, each lane with a model server of this script."""
        chosen = {name: one for name, one in attempts.items() if self.only in ("", name)}
        outcomes = Outcomes()
        said = time.monotonic()
        with ExitStack() as stack:
            servers: SimpleQueue[Served] = SimpleQueue()
            for lane in range(min(lanes, max(1, len(chosen)))):
                servers.put(stack.enter_context(served(self.scratch(part, f"lane-{lane}"), **script)))
            pool = stack.enter_context(ThreadPoolExecutor(lanes))
            stack.callback(pool.shutdown, cancel_futures=True)
            playing = [pool.submit(self._play_one, part, name, one, servers) for name, one in chosen.items()]
            for done in as_completed(playing):
                found = done.result()
                if isinstance(found, Failure):
                    outcomes.failures.append(found)
                    say(f"{part}: FAILED: {found.name}\n{found.text}\n  left in {found.folder}")
                    say(f"  again: {found.again}")
                else:
                    outcomes.survived.append(found)
                if time.monotonic() > said + _SAY_EVERY_S:
                    said = time.monotonic()
                    say(f"{part}: {outcomes.count} of {len(chosen)}, {len(outcomes.failures)} failed")
        return outcomes

    def _play_one(self, part: str, name: str, attempt: Attempt, servers: SimpleQueue[Served]) -> Outcome | Failure:
        server = servers.get()
        folder = self.scratch(part, name.replace(" ", "-"))
        try:
            outcome = attempt(Place(folder, server, self.chance(part, name), time.monotonic()))
        except Exception as error:  # noqa: BLE001
            shown = str(error) if isinstance(error, AssertionError) and str(error) else traceback.format_exc()
            return Failure(name, shown, folder, self.again(part, name))
        finally:
            servers.put(server)
        shutil.rmtree(folder)
        return outcome


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def recovered(asked: Sequence[Asked], started: float) -> float | None:
    """Seconds from a start of the command to its first model call, if it made any."""
    return min((one.at - started for one in asked if one.at > started), default=None)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
