"""The progress of a collection: a bar on a terminal, a line now and then where there is none."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import IO, Any, Self

from tqdm import tqdm

from rollmill.types import Rollout

TITLE = "Collecting rollouts"
LINE_EVERY_S = 10.0
LONG_WAIT_S = 30.0


class Progress:
    """Watches a collection and shows it. `total` is None where the plan has no known end."""

    def __init__(self, total: int | None, held: int = 0, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._total = total
        self._held = self._done = held
        self._began = time.monotonic()
        self._tokens = self._failed = self._rewarded = 0
        self._reward = 0.0
        self._waiting = False
        self._bar: tqdm[Any] | None = None
        self._line_due = self._began + LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._stream.isatty():
            # On a terminal that does not know its size the bar would be empty.
            size = os.get_terminal_size(self._stream.fileno())
            width: dict[str, Any] = (
                {"dynamic_ncols": True} if min(size) > 0 else {"ncols": size.columns or 100, "nrows": 20}
            )
            self._bar = tqdm(
                desc=TITLE, total=self._total, initial=self._held, file=self._stream, smoothing=0.1, **width
            )
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._rewarded or self._failed:
            self._line()

    def ended(self, rollout: Rollout) -> None:
        self._done += 1
        self._tokens += rollout.response.usage.total_tokens
        if rollout.reward is None:
            self._failed += 1
        else:
            self._waiting = False
            self._rewarded += 1
            self._reward += rollout.reward.value
        if self._bar is not None:
            self._bar.set_postfix_str(self._numbers(), refresh=False)
            self._bar.update()
        elif time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + LINE_EVERY_S
            self._line()

    def retrying(self, rollout: Rollout, wait_s: float) -> None:
        self._tokens += rollout.response.usage.total_tokens
        if wait_s >= LONG_WAIT_S and not self._waiting:
            self._waiting = True
            self.say(
                f"Waiting: a rollout is tried again in {wait_s:.0f} s ({rollout.failure and rollout.failure.detail})"
            )

    def say(self, text: str) -> None:
        """A line of its own, the bar left whole."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _numbers(self) -> str:
        elapsed = max(time.monotonic() - self._began, 1e-9)
        reward = f"{self._reward / self._rewarded:.3f}" if self._rewarded else "-"
        return f"{self._tokens / elapsed:.0f} tok/s, reward {reward}, {self._failed} failed"

    def _line(self) -> None:
        meter = tqdm.format_meter(
            self._done,
            self._total,  # type: ignore[arg-type]
            time.monotonic() - self._began,
            prefix=TITLE,
            postfix=self._numbers(),
            initial=self._held,
            ncols=120,
        )
        self.say(meter)
