"""Retries are paid for by answers, so that they never outnumber them by more than a reserve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

RESERVE = 32
MOST = 128
EARNED = 1.1
"""More than one, so that a server that has come back is given more and more to do; less than manners allow."""
_PROBE_S = 1.0
_LONGEST_PROBE_S = 15.0


class Budget:
    """Where it is spent, one call at a time goes and sees whether the server has come back."""

    def __init__(self) -> None:
        self._left = float(RESERVE)
        self._line = asyncio.Lock()
        self._earned = asyncio.Event()
        self._probe_s = _PROBE_S

    def earn(self) -> None:
        self._left = min(self._left + EARNED, MOST)
        self._probe_s = _PROBE_S
        self._earned.set()

    async def spend(self, closing: asyncio.Event, at_latest_s: Callable[[], float | None] = lambda: None) -> None:
        """Return when there is a retry for the caller, or when it is to be the one that sees; or all is closing."""
        async with self._line:
            if self._left < 1 and not closing.is_set():
                await self._wait(closing, at_latest_s() or self._probe_s)
            self._left = max(0.0, self._left - 1)

    async def _wait(self, closing: asyncio.Event, at_latest_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + min(self._probe_s, at_latest_s)
        closes = loop.create_task(closing.wait())
        try:
            while self._left < 1:
                self._earned.clear()
                earns = loop.create_task(self._earned.wait())
                await asyncio.wait((closes, earns), timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                earns.cancel()
                if closes.done():
                    return
                if loop.time() >= end:
                    self._probe_s = min(2 * self._probe_s, _LONGEST_PROBE_S)
                    return
        finally:
            closes.cancel()
