"""One collection, from its source to its report: what was there is counted, what is missing is played and recorded."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from rollmill.collection.beside import write_beside
from rollmill.collection.collector import Collector, Observer
from rollmill.collection.followed import Followed
from rollmill.collection.gauge import Gauge, Running, Warned
from rollmill.collection.options import CollectOptions
from rollmill.collection.plan import Feed, Plan
from rollmill.collection.progress import Progress
from rollmill.collection.report import Report, counted
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.snapshot import Oldest, write_snapshot
from rollmill.collection.source import Source, Survey
from rollmill.collection.worker import Crew, Job
from rollmill.errors import CallerError, ConfigError, OutageError
from rollmill.files import write_whole
from rollmill.store.ledger import Ledger
from rollmill.store.log import RunLog
from rollmill.store.manifest import Identities, Identity, Run
from rollmill.store.recorder import Recorder
from rollmill.store.store import Store
from rollmill.types import Spans

_TICK_S = 1.0
_SNAPSHOT_S = 2.0
_MOST_SKIPPED_SAID = 10


class About(Struct, frozen=True):
    """What the manifest says of this run."""

    run: Run
    config: dict[str, Any]
    identify: Callable[[str], Identity]
    """Who an agent is. Raises `ConfigError` where it cannot play."""


class LeftOver(Struct, frozen=True):
    """Slots of an earlier input that have not ended."""

    slots: int
    tasks: int
    first: tuple[int, ...]
    """The indices of the first of their tasks."""
    command: list[str]
    """What plays them."""


class Outcome(Struct, frozen=True):
    """How a collection ended."""

    report: Report
    planned: int | None
    """How many slots the input asks for; None where it was not read to its end."""
    held: int
    """Slots that the output held before, and how many of them had failed for good."""
    held_failed: int
    ended: int
    failed: int
    """Of those that ended in this run."""
    stopped: str = ""
    """Why it stopped before its end."""
    skipped_rows: int = 0
    left_over: tuple[LeftOver, ...] = ()
    """What earlier inputs asked for and this one does not, where all that this one asks for has ended."""

    @property
    def complete(self) -> bool:
        return self.planned is not None and self.held + self.ended >= self.planned


async def run(
    source: Source,
    survey: Survey,
    crew: AbstractAsyncContextManager[Crew],
    options: CollectOptions,
    about: About,
    *,
    say: Callable[[str], None],
    on_start: Callable[[Collector, Progress], None] = lambda *_: None,
    observers: Sequence[Observer] = (),
    spans: Spans | None = None,
) -> Outcome:
    """Play what is missing. `crew` is entered only if anything is; `on_start` gets what a signal may want to stop."""
    refuse_output(source, options.output_jsonl_fpath)
    with Store(Path(options.output_jsonl_fpath)) as store:
        known = Identities(store.folder, new_segment=options.new_segment)
        for agent in sorted(survey.agents):
            known.meet(agent, about.identify(agent))
        _say_changed_code(known, about.run, say)
        store.open()
        _say_found(store, say)
        ask = _Ask(options, about, say, observers, spans, survey.slots(options.repeats))
        return await _Collection(store, source, known, ask).run(crew, on_start)


class _Ask(Struct, frozen=True):
    """What a collection is to do, and who hears of it."""

    options: CollectOptions
    about: About
    say: Callable[[str], None]
    observers: Sequence[Observer]
    spans: Spans | None
    total: int | None
    """How many slots there are, where that is known already."""


class _Collection:
    """An output that is open, and what is to be done with it."""

    def __init__(self, store: Store, source: Source, known: Identities, ask: _Ask) -> None:
        self._store, self._source, self._known = store, source, known
        self._about, self._say, self._observers = ask.about, ask.say, ask.observers
        self._options = options = ask.options
        self._spans = ask.spans
        self._total = ask.total
        self._skipped = 0
        self._began = False
        self._plan = self._plan_of(
            Ledger(store.index, run=self._about.run.id, retry_failed=options.retry_failed),
            meet=self._meet,
            skip=self._skip if options.skip_bad_rows else None,
        )
        self._feed = Feed(self._plan, source if isinstance(source, Followed) else None)

    async def run(
        self, crew: AbstractAsyncContextManager[Crew], on_start: Callable[[Collector, Progress], None]
    ) -> Outcome:
        try:
            outcome = await self._play(crew, on_start)
        except (CallerError, OutageError):
            if self._began:
                await self._write_beside(complete=False)
            raise
        await self._write_beside(complete=outcome.complete)
        return outcome

    def _plan_of(
        self, ledger: Ledger, *, meet: Callable[[str], None], skip: Callable[[ConfigError], None] | None
    ) -> Plan:
        options = self._options
        return Plan(
            self._source,
            ledger,
            repeats=options.repeats,
            overrides=options.responses_create_params,
            seed=options.seed if options.num_repeats_add_seed else None,
            meet=meet,
            skip=skip,
        )

    async def _write_beside(self, *, complete: bool) -> None:
        owed = (lambda: iter(())) if complete else self._owed
        await write_beside(self._store, self._options.repeats, owed if self._options.nemo_gym_files else None)

    def _owed(self) -> Iterator[list[Job]]:
        """What the next run of the same command would play, as far as that can be read again."""
        if any(path.exists() and not (path.is_file() or path.is_dir()) for path in self._source.files()):
            return
        plan = self._plan_of(Ledger(self._store.index), meet=lambda _: None, skip=lambda _: None)
        with suppress(ConfigError):
            for jobs in plan.stretches():
                if jobs is None:
                    return
                yield jobs

    async def _play(
        self, crew: AbstractAsyncContextManager[Crew], on_start: Callable[[Collector, Progress], None]
    ) -> Outcome:
        await self._find_work()
        if not (self._feed.size or self._feed.waits):
            outcome = self._outcome()
            _mend_metrics(self._store, outcome.report)
            return outcome
        counting = asyncio.create_task(self._count())
        try:
            async with crew as worker:
                return await self._collect(worker, on_start)
        finally:
            counting.cancel()

    async def _find_work(self) -> None:
        """Read to the first slot that is owed."""
        while not (self._feed.size or self._feed.waits or self._feed.exhausted):
            self._feed.read()
            await asyncio.sleep(0)
        if self._feed.exhausted and not (self._plan.tasks or self._skipped):
            raise ConfigError(f"{self._source.name}: there is no task in it")

    async def _collect(self, worker: Crew, on_start: Callable[[Collector, Progress], None]) -> Outcome:
        options, store = self._options, self._store
        self._began = True
        run = self._known.begin(self._about.run, self._about.config)
        async with AsyncExitStack() as stack:
            recorder = await stack.enter_async_context(Recorder(store, options.durability, self._spans))
            log = RunLog(store.folder)
            log.line(f"run {run.id}: {shlex.join(run.command)}")
            progress = stack.enter_context(Progress(line_every_s=options.progress_every_s, log=log.line))
            gauge = Gauge(
                run.id,
                durability=options.durability,
                fixed=options.num_samples_in_parallel,
                now=lambda: _running(collector),
                pressure=worker.pressure,
                plan=lambda: (self.planned, self._plan.held),
            )
            collector = Collector(
                worker,
                self._feed,
                admission=worker.admission,
                recorder=recorder,
                observers=(progress, gauge, *self._observers),
                retry=RetryPolicy(attempts=options.max_attempts),
                max_failures=options.max_failures,
                idle_s=options.follow_idle_s,
                spans=self._spans,
            )
            on_start(collector, progress)
            state = "stopped"
            try:
                async with _watched(gauge, progress, collector, options, store.folder):
                    await collector.run()
                state = collector.stopped or ("stopped" if collector.draining else "finished")
            finally:
                self._feed.settle()
                self._known.note()
                recorder.commit()
                # A run may be over before anybody has looked.
                _warn(gauge, progress, 0.0)
                write_snapshot(store.folder, gauge.snapshot(state))
                progress.show(gauge.snapshot(state), last=True)
                log.line(f"run {run.id}: {state}")
                outcome = self._outcome(collector, worker)
                write_metrics(store.folder, outcome.report.metrics())
            return outcome

    def _outcome(self, collector: Collector | None = None, worker: Crew | None = None) -> Outcome:
        stopped = ""
        if collector is not None and collector.draining:
            stopped = collector.stopped or "stopped"
        outcome = Outcome(
            report=Report(
                self._store.totals,
                self._store.index.clusters(),
                retries=worker.pressure().retries if worker else None,
            ),
            planned=self._plan.planned if self._feed.exhausted else self._total,
            held=self._plan.held,
            held_failed=self._plan.held_failed,
            ended=collector.ended if collector else 0,
            failed=collector.failed if collector else 0,
            stopped=stopped,
            skipped_rows=self._skipped,
        )
        return msgspec.structs.replace(outcome, left_over=self._left_over()) if outcome.complete else outcome

    def _left_over(self) -> tuple[LeftOver, ...]:
        totals = self._store.totals
        found = self._store.index.left_over(totals.rollouts + totals.failed)
        return tuple(LeftOver(one.slots, one.tasks, one.first, self._known.command(one.run)) for one in found)

    @property
    def planned(self) -> int | None:
        return self._plan.planned if self._feed.exhausted else self._total

    async def _count(self) -> None:
        """How many slots there will be, found out while the first are being played."""
        if self._total is not None:
            return
        rows = await asyncio.to_thread(self._source.count)
        repeats = self._options.num_repeats
        if rows is not None and not isinstance(repeats, dict):
            self._total = rows * (repeats or 1)

    def _meet(self, agent: str) -> None:
        identity = self._about.identify(agent)
        self._known.meet(agent, identity)
        if self._known.fresh:
            self._refuse_other_model(agent, identity)

    def _refuse_other_model(self, agent: str, identity: Identity) -> None:
        """The rows know their model too, where the run's folder was left behind."""
        others = self._store.index.models(agent) - {identity.model}
        if others and not self._options.new_segment:
            raise ConfigError(
                f"{self._store.path} holds rollouts of {agent} with the model {min(others)!r}, not {identity.model!r}; "
                "use another output, or +new_segment=true to go on in this one"
            )

    def _skip(self, error: ConfigError) -> None:
        self._skipped += 1
        if self._skipped <= _MOST_SKIPPED_SAID:
            self._say(f"Skipped: {error}")


@asynccontextmanager
async def _watched(
    gauge: Gauge, progress: Progress, collector: Collector, options: CollectOptions, folder: Path
) -> AsyncIterator[None]:
    """While it is open, the gauge is read once a second."""
    watching = asyncio.create_task(_watch(gauge, progress, collector, options, folder), name="watch")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        if not watching.cancelled() and (error := watching.exception()):
            raise error


async def _watch(gauge: Gauge, progress: Progress, collector: Collector, options: CollectOptions, folder: Path) -> None:
    # At once: a run that dies in its first second was one all the same.
    write_snapshot(folder, gauge.snapshot())
    snapshot_due = 0.0
    while True:
        asked = time.monotonic()
        await asyncio.sleep(_TICK_S)
        now = time.monotonic()
        for warned in _warn(gauge, progress, max(0.0, now - asked - _TICK_S)):
            if warned.name in options.stop_if:
                collector.stop(f"stop_if={warned.name}: {warned.text}")
        snapshot = gauge.snapshot()
        progress.show(snapshot)
        if now >= snapshot_due:
            snapshot_due = now + _SNAPSHOT_S
            write_snapshot(folder, snapshot)


def _warn(gauge: Gauge, progress: Progress, lag_s: float) -> list[Warned]:
    """Look at the gauge, and say what looks wrong."""
    found = gauge.tick(lag_s)
    for warned in found:
        progress.say(f"Warning: {warned.text}")
    return found


def _mend_metrics(store: Store, report: Report) -> None:
    """A run that was killed or had no room at its end left the metrics of the one before, or none."""
    if not (store.totals.rollouts or store.totals.failed):
        return
    metrics = report.metrics()
    try:
        written = msgspec.json.decode((store.folder / "metrics.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        written = {}
    if any(written.get(name) != metrics[name] for name in ("rollouts", "failed")):
        write_metrics(store.folder, metrics)


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    write_whole(folder / "metrics.json", msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n")


def refuse_output(source: Source, output: str) -> None:
    """Raise `ConfigError` for an output that cannot be one."""
    path = Path(output)
    if output.endswith("/") or path.is_dir():
        raise ConfigError(f"output {output}: a folder; name a file in it, for example {path / 'a.jsonl'}")
    for given in map(Path, source.files()):
        if given.exists() and path.exists() and given.samefile(path):
            raise ConfigError(f"output {output} is the input: it would be played for ever; name another file")


def _running(collector: Collector) -> Running:
    return Running(
        collector.running,
        collector.most_running,
        _oldest(collector),
        collector.draining,
        follows=collector.follows,
        waited_s=collector.waited_s,
    )


def _oldest(collector: Collector) -> Oldest | None:
    oldest = collector.oldest
    if oldest is None:
        return None
    slot = oldest.job.slot
    seconds = round(time.monotonic() - oldest.since, 1)
    return Oldest(slot.task_index, slot.rollout_index, slot.agent, oldest.job.attempt, seconds)


def _say_changed_code(known: Identities, run: Run, say: Callable[[str], None]) -> None:
    then = known.last_code()
    for agent, now in run.code.items():
        if then.get(agent, now) != now:
            say(
                f"The source of {agent}'s environment has changed since it last played here: if rewards changed, raise "
                "its `version`"
            )


def _say_found(store: Store, say: Callable[[str], None]) -> None:
    found, path = store.found, store.path
    if found.torn_bytes:
        say(f"{path}: its last line was torn by a crash ({found.torn_bytes} bytes, kept in {store.folder}); it is owed")
    if found.garbage:
        places = ", ".join(str(offset) for offset in found.garbage[:3])
        lines = counted(len(found.garbage), "line")
        say(f"{path}: {lines} that are no JSON, at byte {places}; moved to {store.folder}/quarantine.ndjson")
    if found.foreign:
        lines = counted(found.foreign, "line")
        say(f"{path}: {lines} of another origin, the first at byte {found.first_foreign}; they stay, uncounted")
    if found.doubled:
        say(f"{path}: {counted(found.doubled, 'row')} too many for slots that have one already; the first counts")
