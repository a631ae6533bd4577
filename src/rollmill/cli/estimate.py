"""`rollmill estimate`: plays a sample, and says what all of it will take."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollmill.cli.collect import add_arguments, asked_for
from rollmill.cli.guard import SOME_FAILED
from rollmill.cli.loop import run_fast
from rollmill.cli.playing import play
from rollmill.cli.setup import refuse_incomplete
from rollmill.cli.signals import Signals
from rollmill.cli.status import span
from rollmill.cli.tasks import tasks_of
from rollmill.collection.estimate import Estimate, Sample
from rollmill.collection.options import CollectOptions
from rollmill.collection.report import counted
from rollmill.collection.run import Outcome
from rollmill.collection.snapshot import read_snapshot
from rollmill.config import Config, load
from rollmill.errors import ConfigError
from rollmill.instances import with_policy
from rollmill.store.folder import run_folder

SAMPLE = 100


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "estimate",
        usage="rollmill estimate NAME [--model MODEL] [--sample N] [--of SLOTS] [options] [+key=value …]",
        help="play a sample, and say what all of it will take",
        description="Play a sample into a scratch file, and say how fast it went, and what all slots will take. Takes "
        "what `rollmill collect` takes.",
    )
    add_arguments(parser)
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help="how many tasks (%(default)s)")
    parser.add_argument("--of", type=int, metavar="SLOTS", help="how many slots to estimate for (default: all)")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(handler=_estimate, options=CollectOptions)


def _estimate(arguments: argparse.Namespace) -> int:
    if arguments.sample < 1 or (arguments.of is not None and arguments.of < 1):
        raise ConfigError("--sample and --of count from 1")
    asked = asked_for(arguments)
    with tempfile.TemporaryDirectory(prefix="rollmill-estimate-") as folder:
        scratch = str(Path(folder) / "sample.jsonl")
        config = load(
            [*asked.words, f"++output_jsonl_fpath={scratch}"],
            options=CollectOptions,
            files=asked.files,
            initial=asked.layer,
            models_given=True,
        )
        # Of what is there now.
        there = msgspec.structs.replace(config.options, follow=False, follow_idle_s=None)
        config = msgspec.structs.replace(config, options=there)
        refuse_incomplete(config, asked.policy)
        slots = arguments.of or _slots(config, asked.policy)
        sample = Sample(config.options.prices)
        limit = min(arguments.sample, config.options.limit or arguments.sample)
        options = msgspec.structs.replace(config.options, limit=limit)
        signals = Signals(options.grace_s)
        smaller = msgspec.structs.replace(config, options=options)
        outcome = run_fast(play(smaller, asked.policy, [], signals, observers=[sample]))
        output = Path(scratch)
        size = output.stat().st_size if output.exists() else 0
        latest = read_snapshot(run_folder(output))
        estimate = sample.estimate(slots, in_flight=latest.most_running if latest else 0, output_bytes=size)
    if signals.heard:
        return signals.exit_code
    if arguments.json:
        print(msgspec.json.encode(estimate).decode())
    else:
        print("\n".join(lines(estimate, latest.bottleneck if latest else "")))
    return _code(outcome)


def _slots(config: Config[CollectOptions], policy: Any) -> int:
    options = config.options
    source = tasks_of(options, with_policy(config, policy), lambda _: None)
    survey = source.survey(skip_bad=options.skip_bad_rows)
    if (slots := survey.slots(options.repeats)) is not None:
        return slots
    rows = source.count()
    if rows is None:
        print("The input cannot be counted beforehand: give --of SLOTS. Estimating for 1,000,000.", file=sys.stderr)
        return 1_000_000
    return rows * max((options.repeats(agent) for agent in survey.agents), default=1)


def lines(estimate: Estimate, bottleneck: str) -> Iterator[str]:
    failed = f", {estimate.failed} failed" if estimate.failed else ""
    yield f"sample    {counted(estimate.sampled, 'rollout')}{failed}, {estimate.in_flight} at once at most"
    if estimate.rollouts_per_s is None or estimate.seconds is None:
        yield "speed     too few ended to say; raise --sample"
    else:
        yield f"speed     {estimate.rollouts_per_s:.2f} rollouts/s"
        yield f"time      {span(estimate.seconds)} for {counted(estimate.slots, 'slot')}"
        if estimate.in_flight * 3 > estimate.sampled:
            yield "          the sample is small for so many at once: a larger --sample says more"
    about = f" (± {100 * estimate.tokens_half_width:.0f} %)"
    yield f"tokens    {estimate.input_tokens:,.0f} in, {estimate.output_tokens:,.0f} out{about}"
    yield f"disk      {estimate.bytes / 2**30:,.2f} GiB"
    if estimate.cost is not None:
        yield f"cost      {estimate.cost:,.2f} (± {100 * (estimate.cost_half_width or 0):.0f} %), at the prices given"
    else:
        model = next(iter(estimate.unpriced), "MODEL")
        yield f"cost      unknown: give +prices.{model}.input=… and +prices.{model}.output=…, for a million tokens"
    if bottleneck:
        yield f"held up   by {bottleneck}"


def _code(outcome: Outcome) -> int:
    return SOME_FAILED if outcome.failed else 0
