"""The input rows of slots that have ended, read where the rollout or the failure lies; one at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard
from msgspec import Raw, Struct

from rollmill.errors import StoreError
from rollmill.store.failures import NAME as FAILURES
from rollmill.store.folder import run_folder
from rollmill.store.lines import LONGEST_WINDOW, Place, is_compressed
from rollmill.types import OURS, Failure, decode

_KEPT_BYTES = 32 * 2**20
"""How much of a compressed output stays decompressed: neighbours in the order of the input ended at about one time."""
_NONE = Raw(b"null")


class Failed(Struct, frozen=True):
    """What the log of failures says of a slot that failed for good, as far as it is told again elsewhere."""

    failure: Failure
    attempt: int = 1
    task: Raw = _NONE

    @property
    def row(self) -> dict[str, Raw] | None:
        """The input row; None where the log was written without it."""
        return decode(self.task, type=dict[str, Raw] | None)


class Inputs:
    """Reads lines of an output and of its log of failures by their places."""

    def __init__(self, output: _Lines, failures: _Lines) -> None:
        self._output, self._failures = output, failures

    def of_rollout(self, place: Place) -> dict[str, Raw]:
        """The row as it was played: parameters overridden, without what the rollout added."""
        return given(self._output.read(place))

    def of_failure(self, place: Place) -> Failed:
        return _failed.decode(self._failures.read(place))


@contextmanager
def read_inputs(output: Path) -> Iterator[Inputs]:
    rollouts, failures = _Lines(output), _Lines(run_folder(output) / FAILURES)
    try:
        yield Inputs(rollouts, failures)
    finally:
        rollouts.close()
        failures.close()


def given(row: bytes) -> dict[str, Raw]:
    """The fields of a stored row that its input had."""
    fields = decode(row, type=dict[str, Raw])
    added = decode(fields["rollmill"], type=_Added).added
    return {name: value for name, value in fields.items() if name not in OURS and name not in added}


class _Added(Struct, frozen=True):
    added: list[str] = []


_failed = msgspec.json.Decoder(Failed)


class _Lines:
    """One file, opened when it is first read. Frames that were read last are kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._compressed = is_compressed(path)
        self._file: BinaryIO | None = None
        self._frames: OrderedDict[int, bytes] = OrderedDict()

    def read(self, place: Place) -> bytes:
        try:
            if self._compressed:
                return self._frame(place.offset)[place.inner : place.inner + place.length]
            return self._at(place.offset).read(place.length)
        except (OSError, zstandard.ZstdError) as error:
            raise StoreError(f"{self._path}, byte {place.offset}: cannot be read: {error}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _at(self, offset: int) -> BinaryIO:
        if self._file is None:
            self._file = self._path.open("rb")
        self._file.seek(offset)
        return self._file

    def _frame(self, offset: int) -> bytes:
        if offset in self._frames:
            self._frames.move_to_end(offset)
            return self._frames[offset]
        reader = zstandard.ZstdDecompressor(max_window_size=LONGEST_WINDOW).stream_reader(
            self._at(offset), closefd=False
        )
        content = self._frames[offset] = reader.read()
        while sum(map(len, self._frames.values())) > _KEPT_BYTES and len(self._frames) > 1:
            self._frames.popitem(last=False)
        return content
