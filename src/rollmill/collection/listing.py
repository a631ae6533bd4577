"""What an input names, looked up anew each time: files come, go, and are renamed."""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from rollmill.errors import ConfigError

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""Of the files of a folder that are taken."""


class Listing(Protocol):
    """The files of one input, in the order in which they are read."""

    @property
    def name(self) -> str: ...

    def paths(self) -> list[Path]:
        """Those that are there, and perhaps some that are not."""
        ...

    def takes(self, path: Path) -> bool:
        """Whether it would list that, if it were there."""
        ...


class Named(Struct, frozen=True):
    """A file by its name, or the row files of a folder."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def paths(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self.path))  # noqa: PTH208 - names alone
        except PermissionError:
            raise ConfigError(f"{self.path}: cannot be read: Permission denied") from None
        except OSError:
            # It is a file, or not there at the moment.
            return [self.path]
        return [self.path / name for name in names if _is_of_a_folder(name)]

    def takes(self, path: Path) -> bool:
        whole = path.absolute().resolve()
        if self.path.is_dir():
            return whole.parent == self.path.resolve() and _is_of_a_folder(whole.name)
        return whole == self.path.resolve()


class Pattern(Struct, frozen=True):
    """The files that a pattern matches."""

    pattern: str

    @property
    def name(self) -> str:
        return self.pattern

    def paths(self) -> list[Path]:
        return sorted(Path(path).absolute() for path in glob.glob(self.pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern

    def takes(self, path: Path) -> bool:
        return _matches(path.absolute().parts, Path(self.pattern).absolute().parts)


def is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")


def _is_of_a_folder(name: str) -> bool:
    return name.endswith(ENDINGS) and not name.startswith(".")


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
