"""Where a run keeps what it has besides its output: `runs/a.jsonl` has `runs/a.run/` beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

ENDINGS = (".jsonl.zst", ".jsonl")


def stem(output: Path) -> str:
    """The name of an output without its ending."""
    for ending in ENDINGS:
        if output.name.endswith(ending):
            return output.name.removesuffix(ending)
    return output.name


def run_folder(output: Path) -> Path:
    """Nothing but outputs matches `*.jsonl`: scripts that glob would take a sidecar for rollouts."""
    return output.with_name(f"{stem(output)}.run")


def fingerprint(path: Path) -> str:
    """What tells an input from another of its name: its path, size and time."""
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return (
        f"{path} ({status.st_size} bytes, {datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec='seconds')})"
    )
