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
from rollmill.errors import ConfigError
from rollmill.store.journal import Journal
from rollmill.store.ledger import Ledger
from rollmill.store.manifest import Identity, begin, refuse_change, write_whole
from rollmill.store.recorder import Recorder
from rollmill.store.schema import Summary


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
    missing: int = 0
    """Slots that were neither played nor held when it was stopped early."""


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
    _refuse_input_as_output(source, options.output_jsonl_fpath)
    with Journal(Path(options.output_jsonl_fpath)) as journal:
        refuse_change(journal.folder, about.agents)
        report, ledger = Report(), Ledger(reserved=survey.indices)
        for summary in journal.summaries():
            _refuse_other_model(journal, summary, about.agents)
            if ledger.add(summary):
                report.stored(summary)
        _say_of(journal, ledger, say)
        plan = Plan(source, ledger, repeats=options.repeats, overrides=options.responses_create_params)
        planned = sum(count * options.repeats(agent) for agent, count in survey.agents.items())
        held = plan.held() if report.rollouts else 0
        if held == planned:
            return Outcome(report, planned, held)
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
        missing = planned - held - collector.ended if collector.draining else 0
        return Outcome(report, planned, held, missing)


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    write_whole(folder / "metrics.json", msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n")


def _refuse_input_as_output(source: Source, output: str) -> None:
    given, path = Path(source.name), Path(output)
    if output.endswith("/") or path.is_dir():
        raise ConfigError(f"output {output}: a folder; name a file in it, for example {path / 'a.jsonl'}")
    if given.exists() and path.exists() and given.samefile(path):
        raise ConfigError(f"output {output} is the input: it would be played for ever; name another file")


def _refuse_other_model(journal: Journal, row: Summary, agents: Mapping[str, Identity]) -> None:
    """The rows know their model too, also where the run's folder was left behind."""
    agent, model = row.rollmill.slot.agent, row.rollmill.model
    if agent in agents and agents[agent].model != model:
        both = f"the model {model!r}, not {agents[agent].model!r}"
        raise ConfigError(f"{journal.path} holds rollouts of {agent} with {both}; use another output")


def _say_of(journal: Journal, ledger: Ledger, say: Callable[[str], None]) -> None:
    if journal.torn_bytes:
        say(f"{journal.path}: its last line was torn by a crash ({journal.torn_bytes} bytes, kept in {journal.folder})")
    if journal.foreign:
        lines = counted(len(journal.foreign), "line")
        say(f"{journal.path}: {lines} of another origin, the first is line {journal.foreign[0]}; they stay, uncounted")
    if ledger.doubled:
        say(f"{journal.path}: {counted(ledger.doubled, 'row')} too many for slots that have one already; uncounted")
