"""Lines from bytes that come little by little."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from rollmill.collection.stretch import Row

_MARK = b"\xef\xbb\xbf"


class Lines:
    """The rows in what was fed, with the numbers of their lines. What has no line break yet is none."""

    __slots__ = ("_continued", "_number", "_rest", "_scanned")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._number = self._scanned = 0
        self._continued = False

    def feed(self, content: bytes) -> None:
        self._rest += content

    def next(self) -> Row | None:
        """The next whole line that is not blank."""
        while (end := self._rest.find(b"\n", self._scanned)) >= 0:
            line = bytes(self._rest[: end + 1])
            del self._rest[: end + 1]
            self._scanned = 0
            # The break of a line that was taken without it is no line.
            if self._continued and not line.strip():
                self._continued = False
                continue
            if (row := self._row(line)) is not None:
                return row
        self._scanned = len(self._rest)
        return None

    @property
    def left(self) -> bool:
        """Whether anything follows the last line break."""
        return bool(self._rest.strip())

    def last(self, *, ended: bool) -> Row | None:
        """What follows the last line break: as it is, once all has `ended`; before that, if it is a whole object.

        An object that is whole cannot go on, while a number could.
        """
        if not self.left or not (ended or _is_object(self._rest)):
            return None
        line = bytes(self._rest)
        self._rest.clear()
        self._scanned = 0
        row = self._row(line)
        self._continued = True
        return row

    def _row(self, line: bytes) -> Row | None:
        self._number += 1
        self._continued = False
        row = line.removeprefix(_MARK) if self._number == 1 else line
        return (self._number, row) if row.strip() else None


def _is_object(content: bytearray) -> bool:
    if not content.removeprefix(_MARK).lstrip().startswith(b"{"):
        return False
    try:
        msgspec.json.decode(content.removeprefix(_MARK), type=Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
