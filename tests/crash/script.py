"""What the model server of the crash tests is told: which share of its answers is which fault, and when it is away."""

from __future__ import annotations

import hashlib
from typing import Literal

from msgspec import Struct

Fault = Literal[
    # Refusals; one name is one status, with what it says of waiting.
    "429", "429-seconds", "429-date", "500", "502", "503", "504", "520", "400", "401", "404",
    # Connections.
    "reset", "silent", "stall", "trickle", "truncated",
    # Bodies that come with a 200.
    "malformed", "schema", "empty", "huge", "nan", "surrogate", "arguments",
    # A right answer, late.
    "straggler",
]  # fmt: skip


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seed: int = 1
    turns: int = 2
    """Model calls of an errand: 2 looks it up with the tool, 1 knows it by heart."""
    latency_s: float = 0.0
    spread: float = 0.0
    """How far a latency may be from `latency_s`, as a share of it."""
    faults: dict[Fault, float] = {}
    """The share of requests that each fault takes, drawn from the seed, the request and how often it came."""
    first: dict[Fault, int] = {}
    """Faults that whole errands meet: the first so many times that each of its requests comes."""
    retry_after_s: float = 1.0
    straggler_s: float = 2.0
    rate: float = 0.0
    """Requests a second that are let through; the rest is answered 429 with `retry_after_s`. 0 lets all through."""
    away: list[tuple[float, float]] = []
    """When the port is closed, in seconds from the first request on."""

    def fault(self, key: bytes, nth: int) -> Fault | None:
        """What happens to a request that comes for the n-th time; the same in every run."""
        for name, times in self.first.items():
            if nth <= times:
                return name
        if not self.faults:
            return None
        place = draw(self.seed, key, nth)
        for name, share in self.faults.items():
            place -= share
            if place < 0:
                return name
        return None

    def latency(self, key: bytes, nth: int) -> float:
        return self.latency_s * (1 + self.spread * (2 * draw(self.seed + 1, key, nth) - 1))


def draw(seed: int, key: bytes, nth: int) -> float:
    """A number from 0 to 1 that follows from these."""
    digest = hashlib.blake2b(b"%d/%d/%b" % (seed, nth, key), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)


class Asked(Struct, frozen=True):
    """A line of the server's log: a request, and what became of it."""

    at: float
    """On the clock of `time.monotonic`, when the request had come."""
    key: str
    """A hash of its body."""
    nth: int
    number: int
    turn: int
    said: str
    """`200`, or the fault."""
    wait: float = 0.0
    """What the answer asked to wait, where it was a refusal that said so."""

    @property
    def answered(self) -> bool:
        return self.said in ("200", "empty", "straggler", "arguments")
