"""What a command and its workers say to each other."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from rollmill.collection.worker import Pressure
from rollmill.launch import Setup
from rollmill.profiling.profile import Measured
from rollmill.store.schema import Entry
from rollmill.types import Slot

# From the command to a worker.


class Begin(Struct, frozen=True, tag="begin", array_like=True):
    """Get ready to play. `path` is where Python finds modules; with `profile` measure yourself, and tell at the end."""

    setup: Setup
    path: list[str]
    profile: bool = False


class Lease(Struct, frozen=True, tag="lease", array_like=True):
    """Play this: one attempt at one slot. `row` is the task's, with the overrides in it."""

    number: int
    slot: Slot
    attempt: int
    row: bytes


class Drain(Struct, frozen=True, tag="drain", array_like=True):
    """Give up what has not begun."""


class Finish(Struct, frozen=True, tag="finish", array_like=True):
    """Close what is open, say what is left to say, and end."""


Order = Begin | Lease | Drain | Finish

# From a worker to the command.


class Ready(Struct, frozen=True, tag="ready", array_like=True):
    """The live parts are there. Of each agent so many leases may wait."""

    ahead: int


class Credit(Struct, frozen=True, tag="credit", array_like=True):
    """A lease has begun: another may wait in its place."""

    number: int


class Ended(Struct, frozen=True, tag="ended", array_like=True):
    """A lease is over: `row` is the output's line, `response` what had happened where it failed, as JSON."""

    number: int
    entry: Entry
    row: bytes
    response: bytes


class Beat(Struct, frozen=True, tag="beat", array_like=True):
    """The worker is alive, once a second."""

    pressure: Pressure


class Told(Struct, frozen=True, tag="told", array_like=True):
    """What the worker and the processes of its rewards have measured of themselves: its last words."""

    measured: Measured


class Fault(Struct, frozen=True, tag="fault", array_like=True):
    """The run cannot go on: the caller is wrong, or the model is gone."""

    kind: Literal["config", "contract", "outage", "error"]
    text: str
    number: int = 0
    """The lease that met it; 0 where the worker itself did, and ends."""


Report = Ready | Credit | Ended | Beat | Told | Fault

encode = msgspec.msgpack.Encoder().encode
read_order = msgspec.msgpack.Decoder(Order).decode
read_report = msgspec.msgpack.Decoder(Report).decode
