"""An input that grows: files that are appended to, folders and patterns that files join, streams until they end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from rollmill.collection.listing import Listing
from rollmill.collection.piped import Piped
from rollmill.collection.source import Reader, Survey
from rollmill.collection.stretch import Stretch, none_yet
from rollmill.collection.watched import Watched
from rollmill.errors import ConfigError

LOOK_S = 1.0
_LEISURE = 20
"""Looking takes no more than such a part of the time, however many files there are."""
_FIRST_ROWS = 1000


class Followed:
    """A source that ends when its streams have, if it has nothing else; or when it is told to."""

    def __init__(
        self,
        listings: Sequence[Listing],
        streams: Sequence[Path],
        reader: Reader,
        limit: int | None = None,
        *,
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = ", ".join([*(one.name for one in listings), *map(str, streams)])
        self._listings, self._streams, self._reader, self._limit = listings, streams, reader, limit
        self._say, self._clock = say, clock
        self._pass: _Pass | None = None
        self._finishing = False

    def files(self) -> list[Path]:
        return [*(Path(one.name) for one in self._listings), *self._streams, *self._reader.files]

    def takes(self, path: Path) -> bool:
        """Whether that would be read, if it were there."""
        return any(one.takes(path) for one in self._listings)

    def stretches(self) -> Iterator[Stretch]:
        with closing(_Pass(self._listings, self._streams, self._reader, self._say, self._clock)) as reading:
            self._pass = reading
            left = self._limit
            while left is None or left > 0:
                stretch = reading.next(finishing=self._finishing)
                if stretch is None:
                    return
                if left is not None:
                    # A limit is one of the rows that are there at one time.
                    left += reading.returned()
                    stretch = stretch.first(left)
                    left -= len(stretch)
                yield stretch

    def survey(self, *, skip_bad: bool = False) -> Survey:
        """Of the first rows that are in files already."""
        agents: Counter[str] = Counter()
        with closing(_Pass(self._listings, (), self._reader, lambda _: None, self._clock)) as reading:
            while agents.total() < _FIRST_ROWS and (stretch := reading.next(finishing=False)):
                for place in range(len(stretch)):
                    try:
                        agents[stretch[place].agent] += 1
                    except ConfigError:
                        if not skip_bad:
                            raise
        return Survey(agents, None)

    def count(self) -> int | None:
        return None

    async def arrival(self) -> None:
        if self._pass is not None:
            await self._pass.arrival()

    def finish(self) -> None:
        self._finishing = True


class _Pass:
    """One reading of all inputs, which take turns."""

    def __init__(
        self,
        listings: Sequence[Listing],
        streams: Sequence[Path],
        reader: Reader,
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._watched = Watched(listings, reader, say, clock)
        self._streams = [Piped(path, reader) for path in streams]
        self._has_files = bool(listings)
        self._turns: deque[Callable[..., Stretch | None]] = deque(
            [
                *(partial(self._watched.stretch, turn) for turn in self._watched.turns),
                *(stream.stretch for stream in self._streams),
            ]
        )
        self._due = 0.0
        self._looked_last = False
        self._returned = 0

    def next(self, *, finishing: bool) -> Stretch | None:
        """Some rows; a stretch without any where no more have come, and None where no more will."""
        now = self._clock()
        if now >= self._due or (finishing and not self._looked_last):
            # A last time, for what has come since the time before.
            self._looked_last = finishing
            self._watched.look(now, finishing=finishing)
            self._due = now + max(LOOK_S, _LEISURE * (self._clock() - now))
        found: Stretch | None = None
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            if (found := self._turns[-1](ended=finishing)) is not None:
                break
        if found is None and (finishing or not (self._has_files or self._flowing())):
            return None
        return self._told(found or none_yet())

    def returned(self) -> int:
        """How many rows were in what has gone since this was asked last."""
        count, self._returned = self._returned, 0
        return count

    async def arrival(self) -> None:
        """Returns when it is time to look again, or a stream has something."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        descriptors = [stream.open() for stream in self._flowing()]
        for descriptor in descriptors:
            loop.add_reader(descriptor, came.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await came.wait()
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def close(self) -> None:
        self._watched.close()
        for stream in self._streams:
            stream.close()

    def _flowing(self) -> list[Piped]:
        return [stream for stream in self._streams if not stream.ended]

    def _told(self, stretch: Stretch) -> Stretch:
        gone = self._watched.gone()
        stretch.gone = tuple(file.part for file in gone)
        self._returned += sum(file.rows for file in gone)
        return stretch
