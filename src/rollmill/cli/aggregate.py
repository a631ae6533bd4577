"""`rollmill aggregate` and `ng_aggregate_rollouts`: several files of rollouts made one, with what they come to."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from rollmill.cli import merge as merging
from rollmill.cli.ng import Ng
from rollmill.cli.paths import output
from rollmill.cli.spelling import add_options, spelled
from rollmill.collection.beside import beside, write_aggregate_of
from rollmill.collection.report import counted
from rollmill.config import options_from
from rollmill.data.join import are_ours, join
from rollmill.data.scratch import scratch
from rollmill.errors import ConfigError
from rollmill.store.folder import stem
from rollmill.store.merge import merge
from rollmill.types import AgentRef

ABOUT = "Make several files of rollouts one, and say what they come to. Nothing has to be running for it."

MORE = """\
Outputs of collections are joined by slot, as `rollmill merge` does. Files with rows of another origin are put one after
the other, every row as it is; where an earlier file has a rollout with its indices, it gets new ones."""

_SIDECARS = ("failures", "materialized_inputs", "reward_profiling")


class AggregateOptions(Struct, frozen=True, kw_only=True):
    """What to join."""

    input_glob: str | list[str]
    """The files: a pattern such as 'shards/*.jsonl', several with commas between, or a list."""
    output_jsonl_fpath: str
    """Where the rollouts go (.jsonl or .jsonl.zst), a new file; <stem>_aggregate_metrics.json is written beside it."""
    merge_shards: bool = True
    """Write the rollouts. With false only the metrics are written: what the merged file would come to."""
    mixed: bool = False
    """Join outputs even where model, sampling or environment differ."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "aggregate",
        help="make files of rollouts one, and say what they come to",
        description=ABOUT,
        epilog=MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags = {"--out": "output_jsonl_fpath", "--mixed": "mixed"}
    add_options(parser, AggregateOptions, flags, names="IN…", about="files, or patterns such as 'shards/*.jsonl'")
    only = "write the metrics, and not the rollouts"
    parser.add_argument("--metrics-only", dest="merge_shards", action="store_false", default=None, help=only)
    parser.set_defaults(handler=_aggregate, flags=(*flags.values(), "merge_shards"))


def _aggregate(arguments: argparse.Namespace) -> int:
    asked = spelled(arguments)
    named = {"input_glob": asked.names} if asked.names else {}
    return _run(asked.words, named | asked.layer)


def _run(words: Sequence[str], initial: Mapping[str, Any] | None = None) -> int:
    options = options_from(words, AggregateOptions, initial)
    named = _named(options.input_glob)
    sidecars = _sidecars(named)
    files = [path for path in named if path not in sidecars]
    out = output(options.output_jsonl_fpath, "output_jsonl_fpath", *(files if options.merge_shards else ()))
    if options.merge_shards and out.exists():
        raise ConfigError(f"{out} exists: move it away, or give the merged output another name")
    metrics = beside(out, "aggregate_metrics.json")
    lines = _merge(files, out, metrics, options) if are_ours(files) else _join(files, out, metrics, options)
    for line in lines:
        print(line)
    if sidecars:
        print(f"Left out, as they hold no rollouts: {', '.join(map(str, sidecars))}")
    for one in msgspec.json.decode(metrics.read_bytes(), type=list[_Agent]):
        print(f"Key metrics for {one.agent_ref.name}:\n{msgspec.json.format(one.key_metrics, indent=2).decode()}")
    print("Finished rollout aggregation! View results at:")
    if options.merge_shards:
        print(f"Rollouts: {out}")
    print(f"Aggregate metrics: {metrics}")
    return 0


class _Agent(Struct):
    agent_ref: AgentRef
    key_metrics: Raw


def _named(pattern: str | list[str]) -> list[Path]:
    whole = isinstance(pattern, str) and Path(pattern).exists()
    return merging.files_of([str(pattern)] if whole else _split(pattern))


def _sidecars(files: Sequence[Path]) -> list[Path]:
    """What stands beside other files of them; a pattern for the rollouts matches it as well."""
    known = {f"{stem(path)}_{kind}" for path in files for kind in _SIDECARS}
    return [path for path in files if stem(path) in known]


def _split(named: str | list[str]) -> list[str]:
    return [name.strip() for name in named.split(",") if name.strip()] if isinstance(named, str) else named


def _merge(files: Sequence[Path], out: Path, metrics: Path, options: AggregateOptions) -> list[str]:
    """Outputs of collections."""
    with scratch(metrics) as folder:
        merged_to = out if options.merge_shards else folder / out.name
        merged = merge(merged_to, files, mixed=options.mixed)
        write_aggregate_of(merged_to, metrics, folder)
    return list(merging.lines(out, merged) if options.merge_shards else merging.input_lines(merged))


def _join(files: Sequence[Path], out: Path, metrics: Path, options: AggregateOptions) -> list[str]:
    """Rows of any origin."""
    joined = join(files, metrics, out if options.merge_shards else None)
    lines = [f"{counted(joined.rollouts, 'rollout')} of {counted(len(files), 'file')}"]
    if joined.moved:
        lines.append(f"{counted(joined.moved, 'row')} got new indices: an earlier file has theirs for others")
    return lines


NG_AGGREGATE_ROLLOUTS = Ng(about=ABOUT, options=AggregateOptions, run=_run, more=MORE)
