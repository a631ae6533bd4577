"""What the command and the processes that serve say to each other."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from rollmill.launch import Setup

# From the command to a process.


class Place(Struct, frozen=True, array_like=True):
    """One instance that is to be served: on which inherited socket, and how it is called."""

    name: str
    descriptor: int
    host: str
    private: int = -1
    """The socket on which the other processes that serve it ask for this one's sessions."""
    siblings: list[str] = []
    """The URLs of all of those, in their order."""


class Serve(Struct, frozen=True, tag="serve", array_like=True):
    """Make these instances and serve them. `path` is where Python finds modules."""

    setup: Setup
    places: list[Place]
    path: list[str]
    secrets: list[str]
    """What must not be seen in anything that leaves the process."""
    names: list[str]
    """By what else the services may be called."""
    idle_s: float
    wait_s: float
    """How long models that do not answer yet are waited for."""
    worker: int = 0
    """Which of the processes that are alike this is."""
    dry: bool = False
    profiles: str = ""
    """The folder in which profiles are written, where they are made."""
    required_str: str = ""
    """What functions have to have in their name or file to be in them."""


class Stop(Struct, frozen=True, tag="stop", array_like=True):
    """Close what is open, and end."""


Order = Serve | Stop


# From a process to the command.


class Ready(Struct, frozen=True, tag="ready", array_like=True):
    """Every service answers."""


class Notice(Struct, frozen=True, tag="notice", array_like=True):
    """Something that a person should know of an instance; nothing where that is over."""

    name: str
    text: str


class Fault(Struct, frozen=True, tag="fault", array_like=True):
    """It cannot serve: the caller is wrong, or something is."""

    kind: Literal["config", "error"]
    text: str


Report = Ready | Notice | Fault

read_order = msgspec.msgpack.Decoder(Order).decode
read_report = msgspec.msgpack.Decoder(Report).decode
