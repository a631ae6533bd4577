"""Files that come, grow, are replaced and go, each read once whatever it is called."""

from __future__ import annotations

import itertools
import os
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from rollmill.collection.growing import GrowingFile, Key, key_of
from rollmill.collection.listing import Listing
from rollmill.collection.source import Reader
from rollmill.collection.stretch import Stretch

LINGER_S = 3.0
"""Whoever writes to a file may do so for a moment after it was renamed or removed."""
_MOST_OPEN = 16
_ANEW = "it is read from its beginning; a row that was in it before is not played again"

Found = dict[Key, tuple[Path, os.stat_result]]


class Watched:
    """The files that some listings name. The files of one are read in their order; the listings take turns."""

    def __init__(
        self, listings: Sequence[Listing], reader: Reader, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._listings, self._reader, self._say, self._clock = listings, reader, say, clock
        self._parts = itertools.count(1)
        self._files: dict[Key, GrowingFile] = {}
        self._leaving: dict[Key, GrowingFile] = {}
        self._gone: list[GrowingFile] = []
        self._queues: list[deque[GrowingFile]] = []
        self._open: OrderedDict[GrowingFile, None] = OrderedDict()
        self._empty = set(range(len(listings)))

    @property
    def turns(self) -> range:
        """One for each listing, after one for the files that none names any more."""
        return range(len(self._listings) + 1)

    def look(self, now: float, *, finishing: bool = False) -> None:
        """See what is there; `finishing` says that it is for the last time."""
        taken: set[Key] = set()
        found = [_found(listing, taken) for listing in self._listings]
        self._see_who_leaves(taken, now)
        left_behind = {file.path for file in self._leaving.values()}
        for some in found:
            for key, (path, status) in some.items():
                file = self._same(key, path, status)
                if file is None:
                    if path in left_behind:
                        self._say(f"{path} was replaced: {_ANEW}")
                    file = self._files[key] = GrowingFile(path, key, self._reader, part=next(self._parts), now=now)
                file.look(status, now)
        named = [[self._files[key] for key in some] for some in found]
        wanted = [[file for file in some if file.unread or (finishing and file.unfinished)] for some in named]
        self._queues = [deque(some) for some in (self._leaving.values(), *wanted)]
        self._say_what_is_missing(found)

    def stretch(self, turn: int, *, ended: bool) -> Stretch | None:
        """The next rows that have come; with `ended`, what is there of a last line is one."""
        queue, now = self._queues[turn], self._clock()
        while queue:
            file = queue[0]
            leaving = file.left_at is not None
            if not (file.begun or leaving or ended) and self._waits_for_the_leaving(now):
                return None
            leaves = leaving and not _grows(file, now)
            found = file.stretch(ended=ended or leaves)
            self._keep_open(file)
            if found is not None:
                return found
            queue.popleft()
            if leaves:
                del self._leaving[file.key]
                self._let_go(file)
        return None

    def gone(self) -> list[GrowingFile]:
        """Those that are no more, since this was asked last."""
        gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        for file in self._open:
            file.close()

    def _see_who_leaves(self, named: set[Key], now: float) -> None:
        for key in self._leaving.keys() & named:
            # It had no name for a moment.
            file = self._files[key] = self._leaving.pop(key)
            file.left_at = None
        for key in self._files.keys() - named:
            file = self._leaving[key] = self._files.pop(key)
            file.left_at = now
        for file in self._leaving.values():
            file.look_from_within(now)

    def _same(self, key: Key, path: Path, status: os.stat_result) -> GrowingFile | None:
        """What is known of a file, unless its content is another now."""
        file = self._files.get(key)
        if file is None:
            return None
        before, file.path = file.path, path
        if file.is_same(status):
            return file
        # Under another name it is another file, which was given the number of one that has gone.
        if before == path:
            self._say(f"{path} was cut or written anew: {_ANEW}")
        self._let_go(file)
        return None

    def _waits_for_the_leaving(self, now: float) -> bool:
        """A row that comes back stands for the one before only if that has gone first.

        One that grows on without a name is not waited for: the new file may be the one that is meant.
        """
        return any(now - (file.left_at or 0.0) < LINGER_S or not _grows(file, now) for file in self._leaving.values())

    def _let_go(self, file: GrowingFile) -> None:
        if file.left_at is not None and file.unread:
            self._say(f"{file.path} has gone before it was read to its end")
        file.close()
        self._open.pop(file, None)
        self._gone.append(file)

    def _keep_open(self, file: GrowingFile) -> None:
        """Those that were read last stay open, so that they can be read on when they have lost their names."""
        if file.is_open:
            self._open[file] = None
            self._open.move_to_end(file)
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[0].close()

    def _say_what_is_missing(self, found: Sequence[Found]) -> None:
        for number in self._empty:
            if not found[number]:
                self._say(f"{self._listings[number].name}: nothing is there yet; what comes is played")
        self._empty = set()


def _grows(file: GrowingFile, now: float) -> bool:
    """Whether somebody has written to it lately."""
    return now - file.changed_at < LINGER_S


def _found(listing: Listing, taken: set[Key]) -> Found:
    """The files that it names and that no other listing has `taken`."""
    found: Found = {}
    for path in listing.paths():
        try:
            status = path.stat()
        except OSError:
            # It has just gone, or is yet to come.
            continue
        key = key_of(status)
        if stat.S_ISREG(status.st_mode) and key not in taken:
            taken.add(key)
            found[key] = path, status
    return found
