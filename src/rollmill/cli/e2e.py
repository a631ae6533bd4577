"""`rollmill e2e` and `ng_e2e_collect_rollouts`: prepare the datasets, serve what has to be served, collect, stop."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollmill.cli.collect import EXIT_CODES, environment_layer
from rollmill.cli.ng import Ng
from rollmill.cli.playing import collected
from rollmill.cli.prepare import PrepareOptions, lines
from rollmill.cli.say import say
from rollmill.cli.spelling import add_options, spelled
from rollmill.collection.options import CollectOptions
from rollmill.config import Config, load
from rollmill.errors import ConfigError
from rollmill.store.folder import stem

ABOUT = "Prepare the datasets of a configuration, and collect rollouts of one split of them; nothing has to run before."


class E2eOptions(CollectOptions, frozen=True, kw_only=True):
    """A collection, and what is prepared for it."""

    split: Literal["train", "validation", "benchmark", "example"]
    """Which of the prepared datasets is played."""
    reuse_existing_data_preparation: bool = False
    """Take what an earlier command has prepared, as it is."""
    data_source: Literal["huggingface", "gitlab"] = "huggingface"
    """Which source counts where a dataset that is not here names both."""
    overwrite_metrics_conflicts: bool = False
    """Write over metrics of an earlier time that differ, instead of stopping."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("e2e", help="prepare datasets, then collect rollouts of one split", description=ABOUT)
    flags = {
        "--split": "split",
        "--out": "output_jsonl_fpath",
        "--limit": "limit",
        "--repeats": "num_repeats",
        "--reuse": "reuse_existing_data_preparation",
        "--source": "data_source",
    }
    add_options(parser, E2eOptions, flags, names="NAME", about="an environment, whose configuration is taken")
    parser.set_defaults(handler=_e2e)


def _e2e(arguments: argparse.Namespace) -> int:
    asked = spelled(arguments)
    files: list[str] = []
    for name in asked.names:
        found, _ = environment_layer(name)
        files += found
    return _run(asked.words, asked.layer, files)


def _run(words: Sequence[str], initial: Mapping[str, Any] | None = None, files: Sequence[str] = ()) -> int:
    config = load(words, options=E2eOptions, files=files, initial=initial, models_given=True)
    options = config.options
    if options.input_jsonl_fpath is not None:
        raise ConfigError(
            "input_jsonl_fpath: the input is what is prepared; to collect from a file, ng_collect_rollouts"
        )
    out = Path(options.output_jsonl_fpath)
    folder = out.parent / stem(out) / "preprocessed_datasets"
    prepared = folder / f"{options.split}.jsonl"
    if not (options.reuse_existing_data_preparation and prepared.is_file()):
        for line in lines(config, _preparation(options, folder)):
            say(line)
    if not prepared.is_file():
        raise ConfigError(f"split: the configuration has no dataset of type {options.split}")
    chosen = msgspec.structs.replace(options, input_jsonl_fpath=str(prepared))
    return collected(
        Config(chosen, config.instances, config.variables, config.tree, config.warnings, config.sources), None
    )


def _preparation(options: E2eOptions, folder: Path) -> PrepareOptions:
    return PrepareOptions(
        output_dirpath=str(folder),
        mode="example_validation" if options.split == "example" else "train_preparation",
        should_download=True,
        data_source=options.data_source,
        overwrite_metrics_conflicts=options.overwrite_metrics_conflicts,
    )


NG_E2E_COLLECT_ROLLOUTS = Ng(about=ABOUT, options=E2eOptions, run=_run, more=EXIT_CODES)
