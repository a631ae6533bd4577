"""Files that a command's options name."""

from __future__ import annotations

from pathlib import Path

from rollmill.config import find_path
from rollmill.errors import ConfigError
from rollmill.store.folder import ENDINGS


def existing(path: str, key: str) -> Path:
    """Where a file lies; `key` is the option that names it."""
    found = find_path(path, working_dir=Path.cwd())
    if found is None or found.is_dir():
        what = f"is a folder; name its files, for example {path.rstrip('/')}/*.jsonl" if found else "is not there"
        raise ConfigError(f"{key}: {path} {what}")
    # As it was written, where that leads there.
    return given if (given := Path(path).expanduser()).exists() else found


def output(path: str, key: str, *inputs: Path | None) -> Path:
    """A file that is to be written, and is none of those that are read."""
    out = Path(path)
    if path.endswith("/") or out.is_dir():
        raise ConfigError(f"{key}: {path} is a folder; name a file in it")
    if not path.endswith(ENDINGS):
        raise ConfigError(f"{key}: {path}: the name ends in .jsonl or .jsonl.zst")
    if out.exists() and any(given is not None and given.exists() and given.samefile(out) for given in inputs):
        raise ConfigError(f"{key}: {path} is one of the inputs; name another file")
    return out
