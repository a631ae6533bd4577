"""How much may run at once."""

from __future__ import annotations

import asyncio


class Places:
    """So many at once."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._freed = asyncio.Event()

    def room(self, agent: str) -> bool:
        return self._free > 0

    def enter(self, agent: str) -> None:
        self._free -= 1

    def leave(self, agent: str) -> None:
        self._free += 1
        self._freed.set()

    async def changed(self) -> None:
        self._freed.clear()
        await self._freed.wait()
