"""How many calls of one model are in flight: a queue for permits, first come first served."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from rollmill.types import Failure


class Sent(Struct, frozen=True, gc=False):
    """A call on its way."""

    at: float
    saturated: bool
    """The limit was what held it back: its success says that a higher one may be good."""


class Throttle(Protocol):
    """Permits for calls. A call that has one is `sent`, and what became of it is told, before the permit returns."""

    @property
    def limit(self) -> int: ...

    @property
    def in_flight(self) -> int:
        """Permits given out."""
        ...

    @property
    def waiting(self) -> int: ...

    async def acquire(self) -> bool:
        """Wait for a permit. True if this was the last, or had to be waited for."""
        ...

    def sent(self, *, saturated: bool) -> Sent: ...

    def succeeded(self, call: Sent) -> None: ...

    def failed(self, call: Sent, failure: Failure) -> None: ...

    def release(self) -> None: ...


class Queue:
    """Permits up to a limit that may move. A permit that is free costs neither a future nor a task switch."""

    def __init__(self, limit: int) -> None:
        self._limit = float(limit)
        self._given = 0
        # Ordered, and what is cancelled is taken out wherever it stands.
        self._line: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        return self._given

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def acquire(self) -> bool:
        if self._given < self.limit and not self._line:
            self._given += 1
            return self._given >= self.limit
        place = asyncio.get_running_loop().create_future()
        self._line[place] = None
        try:
            await place
        except asyncio.CancelledError:
            if self._line.pop(place, self) is self and not place.cancelled():
                # The permit came in the moment of the cancellation.
                self.release()
            raise
        return True

    def release(self) -> None:
        self._given -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._line and self._given < self.limit:
            place, _ = self._line.popitem(last=False)
            if not place.done():
                self._given += 1
                place.set_result(None)


class Fixed(Queue):
    """As many as it was told."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(limit)
        self._clock = clock

    def sent(self, *, saturated: bool) -> Sent:
        return Sent(self._clock(), saturated)

    def succeeded(self, call: Sent) -> None:
        """It is no reason to change anything."""

    def failed(self, call: Sent, failure: Failure) -> None:
        """It is no reason to change anything."""
