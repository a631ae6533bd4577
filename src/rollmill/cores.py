"""How much of the machine is ours."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those that this process may use: a scheduler or a container may have left it a part of the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
