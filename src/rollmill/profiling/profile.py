"""What one process measures of itself, with what others have told it."""

from __future__ import annotations

from time import perf_counter, process_time

from msgspec import Struct

from rollmill.profiling import functions
from rollmill.profiling.functions import Function, merged
from rollmill.profiling.spans import HELD, Spans, Stages, together, whole


class Measured(Struct, frozen=True):
    """What was measured: in one process, or in several together."""

    stages: Stages = {}
    functions: list[Function] = []
    seconds: float = 0.0
    """For how long; of several the longest."""
    cores: float = 0.0
    """How much of a core it took; of several that play the most."""
    held: float = 0.0
    """For what share of the time single functions held its event loop; of several the most."""
    processes: int = 1
    lost: int = 0
    """Processes that ended before they could tell, or told all."""

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            together(self.stages, other.stages),
            merged((self.functions, other.functions)),
            max(self.seconds, other.seconds),
            max(self.cores, other.cores),
            max(self.held, other.held),
            self.processes + other.processes,
            self.lost + other.lost,
        )


class Profile:
    """Measures this process from `start` on. Other processes that work for it tell what they have measured."""

    def __init__(self) -> None:
        self.spans = Spans()
        """To be given to whatever plays here."""
        self._heard: dict[object, Measured] = {}
        self._lost = 0
        self._began = self._cpu_s = 0.0

    def start(self) -> None:
        functions.start()
        self._began, self._cpu_s = perf_counter(), process_time()

    def stop(self) -> None:
        """What was measured stays."""
        functions.stop()

    def heard(self, who: object, told: Measured) -> None:
        """`told` is everything since that process began: it takes the place of what it told before."""
        self._heard[who] = told

    def lose(self) -> None:
        """A process has ended that had not told all."""
        self._lost += 1

    def measured(self) -> Measured:
        """So far."""
        seconds = perf_counter() - self._began
        # Of a process that plays nothing, it says nothing that it computes all the time.
        cores = (process_time() - self._cpu_s) / seconds if self.spans.stages else 0.0
        held = whole(self.spans.stages.get(HELD, {})).total_s / seconds
        own = Measured(self.spans.stages, functions.measured(), seconds, cores, held, lost=self._lost)
        return sum(self._heard.values(), own)
