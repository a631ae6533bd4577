"""Rewards of every temper: what each errand's reward does is written in its row."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from typing import Any

import rollmill as rm


class Judged(rm.Task):
    number: int
    secret: str
    worth: float
    temper: str = "kind"


def judge(task: Judged, trajectory: rm.Trajectory) -> float:
    match task.temper:
        case "raises":
            raise ZeroDivisionError("nothing to divide by")
        case "exits":
            sys.exit(3)
        case "nan":
            return float("nan")
        case "infinite":
            return float("inf")
        case "nothing":
            return None  # type: ignore[return-value]
        case "text":
            return "0.5"  # type: ignore[return-value]
    return task.worth if trajectory.answer == f"{task.number}: {task.secret}" else 0.0


def rage(temper: str) -> None:
    """What only a process of its own survives."""
    match temper:
        case "leaves":
            os._exit(0)
        case "segfaults":
            ctypes.string_at(0)
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "eats memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            bytearray(4 << 30)
        case "loops in C":
            sum(range(10**12))
        case "sleeps deaf":
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            time.sleep(3600)
        case "forks":
            # A child that outlives its parent, and holds its pipes open.
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(1)
        case "talks":
            for _ in range(1000):
                os.write(1, b'{"value": 1.0}\n' * 10_000)


class Pure(rm.Environment[Judged]):
    """Rewards in processes of their own."""

    @rm.reward(cpu=True, timeout_s=2)
    @staticmethod
    def worth(task: Judged, trajectory: rm.Trajectory, snapshot: Any) -> float:
        rage(task.temper)
        return judge(task, trajectory)


class Live(rm.Environment[Judged]):
    """Rewards in the event loop."""

    @rm.reward
    def worth(self) -> float:
        return judge(self.task, self.trajectory)
