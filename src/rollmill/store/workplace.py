"""A hidden folder beside an output that is being made: what lies in it becomes the output at once, or goes."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from rollmill.errors import ConfigError, StoreError
from rollmill.files import sync_folder
from rollmill.store.folder import run_folder, stem
from rollmill.store.lock import Lock, owner


class Workplace:
    """Enter it, make the output under the name `rows`, with the folder that belongs to it, and hand it over."""

    def __init__(self, out: Path) -> None:
        self._out = out
        # Hidden, so that no glob takes what lies in it for an output.
        self._folder = out.with_name(f".{stem(out)}.merging")
        self.rows = self._folder / out.name
        self.scratch = self._folder / "scratch.sqlite"

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self._folder, str(self._out))
        except OSError as error:
            raise ConfigError(f"{self._out}: cannot be written: {error.strerror}") from None
        try:
            self._take_back()
            self._clear()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._clear()
        self._lock.release()

    def hand_over(self) -> None:
        """The folder first: an output never stands there without it. It stops where somebody else was faster."""
        if self._out.exists():
            raise ConfigError(f"{self._out} was made by somebody else meanwhile: give the merged output another name")
        try:
            run_folder(self.rows).rename(run_folder(self._out))
            self.rows.rename(self._out)
            sync_folder(self._out.parent)
        except OSError as error:
            raise StoreError(f"{self._out}: cannot be put in its place: {error.strerror}") from error

    def _take_back(self) -> None:
        """Refuse a folder that belongs to somebody's run; what a crash left between the two renames is our own."""
        there = run_folder(self._out)
        if not there.exists():
            return
        ours = self.rows.exists() and not run_folder(self.rows).exists()
        if self._out.exists() or not ours or owner(there) is not None:
            raise ConfigError(f"{there} exists: move it away, or give the merged output another name")
        there.rename(run_folder(self.rows))

    def _clear(self) -> None:
        """Everything but the lock."""
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
