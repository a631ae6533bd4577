"""Where a run's rollouts go: those with a reward into the journal, failed attempts into a log of their own."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from rollmill.errors import StoreError
from rollmill.store.journal import Journal
from rollmill.store.schema import one_line, write_row
from rollmill.types import Rollout, encode


class Recorder:
    """Records every attempt of a run."""

    def __init__(self, journal: Journal, run: str) -> None:
        self._journal = journal
        self._run = run
        self._failures: Path = journal.folder / "failures.ndjson"
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file >= 0:
            os.close(self._file)

    async def record(self, rollout: Rollout) -> None:
        if rollout.failure is None:
            self._journal.append(write_row(rollout, self._run))
        else:
            self._append_failure(rollout)

    def _append_failure(self, rollout: Rollout) -> None:
        line = {
            "slot": rollout.slot,
            "attempt": rollout.attempt,
            "failure": rollout.failure,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": self._run,
            "model": rollout.model,
            "seconds": rollout.seconds,
            # What had happened until then: the first thing that whoever looks into a failure asks for.
            "response": rollout.response.wire(),
        }
        row = one_line(encode(line)) + b"\n"
        try:
            if self._file < 0:
                self._file = os.open(self._failures, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
                self._end_torn_line()
            while row:
                row = row[os.write(self._file, row) :]
        except OSError as error:
            raise StoreError(f"{self._failures}: cannot append: {error.strerror}") from error

    def _end_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
