"""The profile of one service or one run, in a file of its own."""

from __future__ import annotations

import os
from pathlib import Path

from rollmill.errors import ConfigError
from rollmill.files import write_whole
from rollmill.profiling.page import page
from rollmill.profiling.profile import Profile


class Profiler(Profile):
    """What a process that is named does with its profile: `start()` it, and at the end `write()` it.

    A service gives `spans` to what it plays with (`assemble(setup, profiler)` does), shows `page()` to whoever asks
    while it goes on, and calls `write()` when it is stopped; both may be called at any time, and as often as one likes.
    Whoever calls them gets what was measured since `start()`. There is one in a process.
    """

    def __init__(self, name: str, folder: Path, *, required_str: str = "") -> None:
        """The page will be `folder/name.log`. `required_str` chooses functions by their name or file."""
        super().__init__()
        self.name = name
        self.path = folder / f"{name}.log"
        self._required_str = required_str

    def start(self) -> None:
        """Raises `ConfigError` where the page could not be written."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"profiling_results_dirpath: {folder} cannot be made: {error.strerror}") from None
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"profiling_results_dirpath: {folder} cannot be written to")
        super().start()

    def page(self) -> str:
        return page(self.name, self.measured(), self._required_str)

    def write(self) -> Path:
        """All of it or nothing: a reader never sees half a page."""
        write_whole(self.path, self.page().encode())
        return self.path
