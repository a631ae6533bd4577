"""What a process took: its time, its CPU, and its memory while it ran."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from msgspec import Struct

LONGEST_S = 3600.0
SAMPLE_S = 0.25
MB = 1e6


class Cost(Struct, frozen=True):
    """What one process took, with the children that it waited for."""

    wall_s: float
    cpu_s: float
    began: float
    """In seconds since 1970, as the server counts."""


class Rate(Struct, frozen=True):
    """What rollouts take, without what starting takes."""

    per_s: float
    cpu_ms: float
    start_s: float
    """What starting and ending took."""


class MeasurementError(Exception):
    """What was measured is worth nothing: a process that failed, or a count that is wrong."""


Watch = Callable[[int], AbstractContextManager[object]]


def run(command: Sequence[str | Path], log: Path, watch: Watch = nullcontext) -> Cost:
    """Run a command to its end, inside `watch` of its process id.

    Raises `MeasurementError` with the end of what it said, if it says that it failed.
    """
    with log.open("wb") as file:
        wall, began = time.perf_counter(), time.time()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        limit = threading.Timer(LONGEST_S, process.kill)
        limit.start()
        try:
            with watch(process.pid):
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.perf_counter() - wall
        finally:
            limit.cancel()
            if process.returncode is None:
                process.kill()
                process.wait()
    if process.returncode:
        words = " ".join(map(str, command))
        raise MeasurementError(f"exit code {process.returncode} of {words}\n{log.read_text(errors='replace')[-2000:]}")
    return Cost(wall, used.ru_utime + used.ru_stime, began)


def rate(small: tuple[int, Cost], large: tuple[int, Cost]) -> Rate:
    """From two runs of different size: what both of them took falls out of the difference."""
    (few, short), (many, long) = small, large
    wall, cpu = long.wall_s - short.wall_s, long.cpu_s - short.cpu_s
    if wall <= 0 or cpu <= 0:
        raise MeasurementError(
            f"{many} rollouts took no longer than {few}: play more, or on a machine that is less busy"
        )
    per_s = (many - few) / wall
    return Rate(per_s, 1e3 * cpu / (many - few), short.wall_s - few / per_s)


class Sample(Struct, frozen=True):
    progress: float
    memory_mb: float
    peak_mb: float


class MemoryWatch:
    """Samples the resident memory of a process and its children, beside a measure of its progress."""

    def __init__(self, progress: Callable[[], float]) -> None:
        self.samples: list[Sample] = []
        self._progress = progress

    @contextmanager
    def of(self, pid: int) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(pid, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def peak_mb(self) -> float:
        return max(sample.peak_mb for sample in self.samples)

    def slope(self, first: float, last: float) -> float:
        """Megabytes by which memory grows with each unit of progress, between two points of it."""
        chosen = [sample for sample in self.samples if first <= sample.progress < last]
        if len({sample.progress for sample in chosen}) < 3:
            raise MeasurementError(f"only {len(chosen)} samples of memory between {first:g} and {last:g}: play more")
        fit = statistics.linear_regression([one.progress for one in chosen], [one.memory_mb for one in chosen])
        return fit.slope

    def _watch(self, pid: int, over: threading.Event) -> None:
        while not over.wait(SAMPLE_S):
            memory = [memory_of(one) for one in (pid, *descendants(pid))]
            now, peak = (sum(values) for values in zip(*memory, strict=True))
            if now:
                self.samples.append(Sample(self._progress(), now, peak))


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in thread.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def memory_of(pid: int) -> tuple[float, float]:
    """Megabytes that are resident, and the most that ever were; nothing for a process that has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    fields = dict(line.split(":", 1) for line in lines)
    now, peak = (int(fields.get(name, "0 kB").split()[0]) * 1024 / MB for name in ("VmRSS", "VmHWM"))
    return now, peak
