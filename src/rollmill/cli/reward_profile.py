"""`rollmill reward-profile` and `ng_reward_profile`: what the rollouts of each task come to."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rollmill.cli.ng import Ng
from rollmill.cli.paths import existing, output
from rollmill.cli.spelling import add_options, spelled
from rollmill.collection.report import counted
from rollmill.config import options_from
from rollmill.data.earned import write_earned
from rollmill.data.reward_profile import profile
from rollmill.errors import ConfigError

ABOUT = "Say what the rollouts of each task come to, and those of each agent. Nothing is played or verified."

MORE = """\
There are two forms. Without output_jsonl_fpath, <stem>_reward_profiling.jsonl and <stem>_agent_metrics.json are written
beside the rollouts. With it, that file gets every task's row with avg_reward and so on beside its fields."""


class ProfileOptions(Struct, frozen=True, kw_only=True):
    """Of both forms."""

    rollouts_jsonl_fpath: str
    """The rollouts: an output of a collection, or of another system (.jsonl, .gz or .zst)."""
    materialized_inputs_jsonl_fpath: str | None = None
    """Every rollout that there should be, as a collection writes them with +nemo_gym_files=true. Without it the
    rollouts themselves say what they were asked, and nobody knows what is missing."""
    allow_partial_rollouts: bool = False
    """Take what there is where rollouts are missing."""
    output_jsonl_fpath: str | None = None
    """Where each task's row goes with its metrics: the second form."""
    input_jsonl_fpath: str | None = None
    """The tasks, for the second form; without it the rollouts themselves say what they were asked."""
    pass_threshold: float | None = None
    """The reward from which on a rollout passes, for the second form; without it nothing is said of passing."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "reward-profile",
        help="what the rollouts of each task come to",
        description=ABOUT,
        epilog=MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags = {
        "--inputs": "materialized_inputs_jsonl_fpath",
        "--partial": "allow_partial_rollouts",
        "--out": "output_jsonl_fpath",
        "--tasks": "input_jsonl_fpath",
        "--pass-threshold": "pass_threshold",
    }
    add_options(parser, ProfileOptions, flags, names="ROLLOUTS", about="an output of a collection")
    parser.set_defaults(handler=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    asked = spelled(arguments)
    return _run(asked.words, asked.named("rollouts_jsonl_fpath"))


def _run(words: Sequence[str], initial: Mapping[str, Any] | None = None) -> int:
    options = options_from(words, ProfileOptions, initial)
    _refuse_mixture(options)
    rollouts = existing(options.rollouts_jsonl_fpath, "rollouts_jsonl_fpath")
    if options.output_jsonl_fpath is None:
        _write_profile(rollouts, options)
    else:
        _write_tasks(rollouts, options.output_jsonl_fpath, options)
    return 0


def _refuse_mixture(options: ProfileOptions) -> None:
    """Raise `ConfigError` for a key of the other form."""
    if options.output_jsonl_fpath is None:
        wrong = {"input_jsonl_fpath": options.input_jsonl_fpath, "pass_threshold": options.pass_threshold}
        what = "belongs to the form with output_jsonl_fpath: give that, too"
    else:
        partial = options.allow_partial_rollouts or None
        materialized = options.materialized_inputs_jsonl_fpath
        wrong = {"materialized_inputs_jsonl_fpath": materialized, "allow_partial_rollouts": partial}
        what = "belongs to the form without output_jsonl_fpath: leave one of them out"
    for key, value in wrong.items():
        if value is not None:
            raise ConfigError(f"{key} {what}")


def _write_profile(rollouts: Path, options: ProfileOptions) -> None:
    given = options.materialized_inputs_jsonl_fpath
    inputs = None if given is None else existing(given, "materialized_inputs_jsonl_fpath")
    done = profile(rollouts, inputs, partial=options.allow_partial_rollouts)
    of = f" of {done.expected:,}" if done.expected is not None else ""
    print(f"Profiled {counted(done.rollouts, 'rollout')}{of}, {counted(done.profiled, 'task')}")
    print(f"Profiling outputs:\nReward profiling outputs: {done.tasks}\nAgent-level metrics: {done.agents}")


def _write_tasks(rollouts: Path, out: str, options: ProfileOptions) -> None:
    given = options.input_jsonl_fpath
    inputs = None if given is None else existing(given, "input_jsonl_fpath")
    to = output(out, "output_jsonl_fpath", rollouts, inputs)
    done = write_earned(rollouts, to, inputs, threshold=options.pass_threshold)
    print(f"Profiled tasks: {to} ({counted(done.tasks, 'row')} of {counted(done.of, 'task')} with rollouts)")


NG_REWARD_PROFILE = Ng(about=ABOUT, options=ProfileOptions, run=_run, more=MORE)
