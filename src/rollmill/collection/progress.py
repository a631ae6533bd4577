"""The progress of a collection: a bar on a terminal, a line now and then where there is none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self

from tqdm import tqdm

from rollmill.collection.snapshot import Snapshot
from rollmill.store.schema import Entry

TITLE = "Collecting rollouts"
LONG_WAIT_S = 30.0
_BAR_EVERY_S = 0.2


class Progress:
    """Shows what a gauge measures."""

    def __init__(
        self,
        *,
        line_every_s: float = 10.0,
        stream: IO[str] | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`log` gets every line, and one now and then where a bar is drawn."""
        self._log = log
        self._stream = stream or sys.stderr
        self._line_every_s = line_every_s
        self._bar: tqdm[Any] | None = None
        self._began = time.monotonic()
        self._line_due = self._began + line_every_s
        self._waiting = False
        self._bottleneck = ""
        self._waited_at: int | None = None
        self._gone = False

    def __enter__(self) -> Self:
        if self._stream.isatty():
            # On a terminal that does not know its size the bar would be empty.
            size = os.get_terminal_size(self._stream.fileno())
            width: dict[str, Any] = (
                {"dynamic_ncols": True} if min(size) > 0 else {"ncols": size.columns or 100, "nrows": 20}
            )
            self._bar = tqdm(desc=TITLE, file=self._stream, smoothing=0.1, mininterval=_BAR_EVERY_S, **width)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    # As an observer of the collector.

    def ended(self, entry: Entry) -> None:
        if entry.failure is None:
            self._waiting = False

    def retrying(self, entry: Entry, wait_s: float) -> None:
        if wait_s >= LONG_WAIT_S and not self._waiting:
            self._waiting = True
            detail = entry.failure.detail if entry.failure else ""
            self.say(f"Waiting: a rollout is tried again in {wait_s:.0f} s ({detail})")

    # Told from time to time.

    def show(self, now: Snapshot, *, last: bool = False) -> None:
        if self._bar is not None:
            self._draw(self._bar, now)
        if time.monotonic() < self._line_due and not (last and now.ended):
            return
        self._line_due = time.monotonic() + self._line_every_s
        if self._says_it_again(now) and not last:
            return
        line = self._line(now)
        if self._bar is not None:
            self._log(line)
        else:
            self.say(line)
        if now.bottleneck and now.bottleneck != self._bottleneck:
            self._bottleneck = now.bottleneck
            self.say(f"Bottleneck: {now.bottleneck}")

    def _says_it_again(self, now: Snapshot) -> bool:
        """While it waits for rows, one line is enough."""
        before, self._waited_at = self._waited_at, None if now.waited_s is None else now.done
        return before is not None and before == self._waited_at

    def say(self, text: str) -> None:
        """A line of its own, the bar left whole. A reader that has gone is no reason to stop."""
        self._log(text)
        if self._gone:
            return
        try:
            if self._bar is not None:
                self._bar.write(text, file=self._stream)
            else:
                self._stream.write(f"{text}\n")
                self._stream.flush()
        except (BrokenPipeError, OSError):
            self._gone = True

    def _draw(self, bar: tqdm[Any], now: Snapshot) -> None:
        if self._gone:
            return
        if bar.total != now.planned or bar.initial != now.held:
            # The rate is of what this run plays, not of what was there.
            bar.total, bar.initial = now.planned, now.held
        bar.n = now.done
        try:
            bar.set_postfix_str(_numbers(now), refresh=True)
        except (BrokenPipeError, OSError):
            # The terminal was closed: the run goes on.
            self._gone = True

    def _line(self, now: Snapshot) -> str:
        return tqdm.format_meter(
            now.done,
            now.planned,  # type: ignore[arg-type]
            time.monotonic() - self._began,
            prefix=TITLE,
            postfix=_numbers(now),
            initial=now.held,
            ncols=120,
        )


def _numbers(now: Snapshot) -> str:
    reward = "-" if now.reward_mean is None else f"{now.reward_mean:.3f}"
    parts = [f"{now.tokens_per_s or now.tokens_per_s_overall:.0f} tok/s", f"reward {reward}", f"{now.failed} failed"]
    retries = sum(now.retries.values())
    if retries:
        parts.append(f"{retries} retried")
    if now.paused:
        parts.append("paused")
    if now.waited_s is not None:
        parts.append("waiting for rows")
    return ", ".join(parts)
