"""A collection from its configuration to its exit code: where it plays, what it says, how it is stopped."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import rollmill
from rollmill.cli import summary
from rollmill.cli.apart import served_if_needed
from rollmill.cli.descriptors import lowered, most_at_once
from rollmill.cli.guard import SOME_FAILED
from rollmill.cli.loop import run_fast
from rollmill.cli.profiled import profiled
from rollmill.cli.say import say
from rollmill.cli.served import Running
from rollmill.cli.setup import refuse_incomplete, setup_of
from rollmill.cli.signals import Signals
from rollmill.cli.tasks import tasks_of
from rollmill.collection.collector import Observer
from rollmill.collection.options import CollectOptions
from rollmill.collection.run import About, Outcome, run
from rollmill.collection.streams import outlive_readers
from rollmill.collection.worker import Crew
from rollmill.config import Config, Instance, masked, masked_text
from rollmill.engines.processes import ProcessCrew
from rollmill.instances import addresses_of, fingerprints, identity_of, refuse_deferring, with_policy
from rollmill.launch import assemble, check_endpoint
from rollmill.profiling.profiler import Profiler
from rollmill.store.folder import fingerprint
from rollmill.store.manifest import Identity, new_run


def collected(
    config: Config[CollectOptions], policy: Instance | None, *, running: Running | None = None, absent: str = ""
) -> int:
    """Play what is missing, on the services that run if there are some; `absent` says why there are none."""
    outlive_readers()
    for warning in config.warnings:
        say(warning)
    refuse_incomplete(config, policy, absent)
    command = [Path(sys.argv[0]).name, *(masked_text(word, config) for word in sys.argv[1:])]
    again = f"the same command plays what is missing:\n  {shlex.join(command)}"
    signals = Signals(config.options.grace_s)
    with profiled(config) as profiler:
        try:
            outcome = run_fast(_play_where_it_can(config, policy, command, signals, running=running, profiler=profiler))
        except asyncio.CancelledError:
            print(f"Stopped. What had ended is recorded; {again}")
            return signals.exit_code
        summary.show(outcome, config.options, again)
    if signals.heard and not outcome.complete:
        return signals.exit_code
    return 0 if outcome.complete and not outcome.report.totals.failed else SOME_FAILED


async def _play_where_it_can(
    config: Config[CollectOptions],
    policy: Instance | None,
    command: list[str],
    signals: Signals,
    *,
    running: Running | None,
    profiler: Profiler | None,
) -> Outcome:
    """On services that run, in this process, or on services that run for this collection alone."""
    if running is not None:
        return await play(config, policy, command, signals, addresses=running.addresses, profiler=profiler)
    async with served_if_needed(config, with_policy(config, policy)) as addresses:
        return await play(config, policy, command, signals, addresses=addresses, profiler=profiler)


async def play(
    config: Config[CollectOptions],
    policy: Instance | None,
    command: list[str],
    signals: Signals,
    *,
    observers: Sequence[Observer] = (),
    addresses: Mapping[str, str] = {},
    profiler: Profiler | None = None,
) -> Outcome:
    """`addresses` are those of instances that live behind services."""
    instances = with_policy(config, policy)
    most = most_at_once(instances)
    options = lowered(config.options, instances, most, say)
    # First of all: a server that is down is said before a large input is read.
    addresses = {**addresses_of(instances), **addresses}
    await check_endpoint(instances, options.agent_name, addresses)
    source = tasks_of(options, instances, say, addresses)
    survey = source.survey(skip_bad=options.skip_bad_rows)
    agents = tuple(sorted(survey.agents))
    about = About(
        run=new_run(
            version=rollmill.__version__,
            command=command,
            durability=options.durability,
            code=fingerprints(instances, agents, addresses),
            inputs=[fingerprint(path) for path in source.files()],
        ),
        config=masked(config)
        | ({policy.name: {policy.kind: {policy.implementation: masked(policy.fields)}}} if policy else {}),
        identify=lambda agent: _identify(instances, agent, options, addresses),
    )
    setup = setup_of(options, instances, agents, about.run.id, most=most, addresses=addresses)
    crew: AbstractAsyncContextManager[Crew]
    if options.workers == 1:
        crew = assemble(setup, profiler)
    else:
        crew = ProcessCrew(setup, options.workers, say, profile=profiler)
    return await run(
        source,
        survey,
        crew,
        options,
        about,
        say=say,
        on_start=signals.listen,
        observers=observers,
        spans=profiler.spans if profiler else None,
    )


def _identify(
    instances: Mapping[str, Instance], agent: str, options: CollectOptions, addresses: Mapping[str, str]
) -> Identity:
    if options.verify == "defer":
        refuse_deferring(instances, agent, addresses)
    return identity_of(instances, agent, options.responses_create_params, addresses)
