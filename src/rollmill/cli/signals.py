"""Ctrl-C and SIGTERM: end well, end soon, end at once."""

from __future__ import annotations

import asyncio
import os
import signal

from rollmill.collection.collector import Collector
from rollmill.collection.progress import Progress
from rollmill.collection.report import counted

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Signals:
    """Once: let what runs end. Twice: stop now; what ended is recorded, the rest is owed. A third time: leave.

    SIGTERM is as Ctrl-C, and after a while as a second one: schedulers kill what is not gone by then.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self.heard = 0
        self.exit_code: int = INTERRUPTED

    def listen(self, collector: Collector, progress: Progress) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def stop(number: int, _: object) -> None:
            self.heard += 1
            self.exit_code = 128 + number
            if self.heard == 1:
                loop.call_soon_threadsafe(self._drain, collector, progress, number, task)
            elif self.heard == 2 and task is not None:
                loop.call_soon_threadsafe(task.cancel)
            else:
                os._exit(self.exit_code)

        # Not the loop's own handlers: these run even while an author's code holds the loop.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            # A terminal that closes is no reason to lose a run that goes on without it.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _drain(self, collector: Collector, progress: Progress, number: int, task: asyncio.Task[object] | None) -> None:
        collector.drain()
        running = counted(collector.running, "rollout")
        if number == signal.SIGTERM and task is not None:
            asyncio.get_running_loop().call_later(self._grace_s, task.cancel)
            progress.say(f"Stopping: waiting for {running}, {self._grace_s:g} s at most.")
        else:
            progress.say(f"Stopping: waiting for {running}. Ctrl-C again stops now.")
