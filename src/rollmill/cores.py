"""How much of the machine is ours."""

from __future__ import annotations

import os
import resource

_MOST_FILES = 65_536


def usable_cores() -> int:
    """Those that this process may use: a scheduler or a container may have left it a part of the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def allow_many_files() -> int:
    """As many as this process may allow itself; how many those are."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        now = wanted
    return _MOST_FILES if now == resource.RLIM_INFINITY else now
