"""The event loop of a command."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_fast(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, on uvloop where it is installed."""
    # Records are many and hold no cycles: looking through all of them so often finds nothing.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)
