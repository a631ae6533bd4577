"""One collection, from its source to its report: what was there is counted, what is missing is played and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from rollmill.collection.collector import Collector
from rollmill.collection.options import CollectOptions
from rollmill.collection.plan import Plan
from rollmill.collection.progress import Progress
from rollmill.collection.report import Report, counted
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.source import Source, Survey
from rollmill.collection.worker import Worker
from rollmill.store.journal import Journal
from rollmill.store.ledger import Ledger
from rollmill.store.manifest import Identity, begin, refuse_change, write_whole
from rollmill.store.recorder import Recorder


class Crew(Worker, Protocol):
    """A worker that knows how much it can do."""

    @property
    def places(self) -> int:
        """How many rollouts it can well play at once."""
        ...


class About(Struct, frozen=True):
    """What the manifest says of this run."""

    agents: dict[str, Identity]
    version: str
    command: list[str]
    config: dict[str, Any]


class Outcome(Struct, frozen=True):
    """How a collection ended."""

    report: Report
    planned: int
    held: int
    """Slots that the output held before."""
    drained: bool


async def run(
    source: Source,
    survey: Survey,
    crew: AbstractAsyncContextManager[Crew],
    options: CollectOptions,
    about: About,
    *,
    say: Callable[[str], None],
    on_start: Callable[[Collector, Progress], None] = lambda *_: None,
) -> Outcome:
    """Play what is missing. `crew` is entered only if anything is; `on_start` gets what a signal may want to stop."""
    with Journal(Path(options.output_jsonl_fpath)) as journal:
        report, ledger = Report(), Ledger()
        for summary in journal.summaries():
            if ledger.add(summary):
                report.stored(summary)
        _say_of(journal, ledger, say)
        refuse_change(journal.folder, about.agents)
        plan = Plan(source, ledger, repeats=options.repeats, overrides=options.responses_create_params)
        planned = _planned(source, survey, options)
        held = plan.held() if report.rollouts else 0
        if held == planned:
            return Outcome(report, planned, held, drained=False)
        async with crew as worker:
            manifest = begin(
                journal.folder,
                version=about.version,
                command=about.command,
                agents=about.agents,
                config=about.config,
            )
            with Recorder(journal, manifest.run) as recorder, Progress(planned, held) as progress:
                collector = Collector(
                    worker,
                    plan,
                    places=options.num_samples_in_parallel or worker.places,
                    recorder=recorder,
                    observers=(report, progress),
                    retry=RetryPolicy(attempts=options.max_attempts),
                )
                on_start(collector, progress)
                try:
                    await collector.run()
                finally:
                    write_metrics(journal.folder, report.metrics())
        return Outcome(report, planned, held, collector.draining)


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    write_whole(folder / "metrics.json", msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n")


def _planned(source: Source, survey: Survey, options: CollectOptions) -> int:
    if not isinstance(options.num_repeats, dict):
        return survey.tasks * (options.num_repeats or 1)
    return sum(options.repeats(planned.agent) for planned in source)


def _say_of(journal: Journal, ledger: Ledger, say: Callable[[str], None]) -> None:
    if journal.torn_bytes:
        say(f"{journal.path}: its last line was torn by a crash ({journal.torn_bytes} bytes, kept in {journal.folder})")
    if journal.foreign:
        lines = counted(len(journal.foreign), "line")
        say(f"{journal.path}: {lines} of another origin, the first is line {journal.foreign[0]}; they stay, uncounted")
    if ledger.doubled:
        say(f"{journal.path}: {counted(ledger.doubled, 'row')} too many for slots that have one already; uncounted")
