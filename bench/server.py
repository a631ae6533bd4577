"""The scripted model server, compiled and started."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import msgspec
from msgspec import Struct

SOURCE = Path(__file__).with_name("server.c")


class Stats(Struct, frozen=True):
    """What the server has seen since it was reset; questions for models and for these numbers do not count."""

    requests: int
    by_status: dict[str, int]
    first_request: float
    """When the first model call came, in seconds since 1970; 0 before it."""
    most_connections: int
    cpu_s: float


class Server:
    """Enter it to have a server of your own on a free port. It ends with whoever started it."""

    def __init__(self, folder: Path) -> None:
        self._binary = folder / "server"

    def __enter__(self) -> Self:
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", self._binary, SOURCE], check=True)
        self.process = subprocess.Popen(
            [self._binary, "0", "--until-eof"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.root = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        # Closes its standard input, which is what it waits for.
        self.process.communicate()

    def url(self, script: str) -> str:
        """The base URL of a model that plays this script, such as `single-0` or `tools4.get_synonym_value-200`."""
        return f"{self.root}/{script}/v1"

    def stats(self) -> Stats:
        return msgspec.json.decode(self._get("/stats"), type=Stats)

    def reset(self) -> None:
        self._get("/reset")

    def _get(self, path: str) -> Any:
        with urlopen(self.root + path) as answer:
            return answer.read()
