"""A worker in this process: it plays with the objects themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from rollmill.agent import Agent
from rollmill.collection.calls import Calls
from rollmill.collection.limits import LocalAdmission
from rollmill.collection.worker import Job, Played, Pressure, together
from rollmill.deadline import Watch
from rollmill.environment import Compute, World
from rollmill.errors import CallerError
from rollmill.model import Model
from rollmill.rollout import Deadlines, Judge, at_once, play
from rollmill.store.schema import entry_of, write_row
from rollmill.types import Spans, encode


class Seat(Struct, frozen=True):
    """Everything that one agent plays with."""

    world: World
    agent: Agent
    model: Model


Seats = Callable[[str], Awaitable[Seat]]
"""The seat of an agent, made when it is first asked for."""


class LocalWorker:
    """Plays in this process."""

    def __init__(
        self,
        seats: Seats,
        compute: Compute,
        *,
        run: str,
        admission: LocalAdmission,
        calls: Sequence[Calls] = (),
        deadlines: Deadlines = Deadlines(),
        judge: Judge = at_once,
        spans: Spans | None = None,
        keep_rollouts: bool = False,
        hide: Callable[[str], str] = str,
    ) -> None:
        """`keep_rollouts` hands on the records themselves, for a caller who takes them as they end.

        `hide` takes secrets out of what is said of failures: exceptions hold whatever their authors put into them.
        """
        self._seats = seats
        self._compute = compute
        self._run = run
        self.admission = admission
        self._calls = calls
        self._deadlines = deadlines
        self._judge = judge
        self._spans = spans
        self._keep_rollouts, self._hide = keep_rollouts, hide
        self._watch = Watch()

    async def play(self, job: Job) -> Played:
        seat = await self._seats(job.slot.agent)
        try:
            with self.admission.present(job.slot.agent, seat.model) as model:
                rollout = await play(
                    job.task,
                    seat.world,
                    seat.agent,
                    model,
                    slot=job.slot,
                    attempt=job.attempt,
                    compute=self._compute,
                    deadlines=self._deadlines,
                    judge=self._judge,
                    watch=self._watch,
                    spans=self._spans,
                )
        except CallerError as error:
            for calls in self._calls:
                # What is wrong for every task is said without one.
                calls.check()
            raise type(error)(f"task {job.slot.task_index}: {self._hide(str(error))}") from error
        if rollout.failure is not None:
            failure = replace(rollout.failure, detail=self._hide(rollout.failure.detail))
            rollout = replace(rollout, failure=failure)
        entry = entry_of(rollout, self._run)
        kept = rollout if self._keep_rollouts else None
        if rollout.failure is None:
            return Played(entry, row=write_row(rollout, self._run), rollout=kept)
        return Played(entry, response=Raw(encode(rollout.response.wire())), rollout=kept)

    def drain(self) -> None:
        for calls in self._calls:
            calls.drain()

    def pressure(self) -> Pressure:
        return together(calls.pressure() for calls in self._calls)
