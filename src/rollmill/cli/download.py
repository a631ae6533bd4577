"""`rollmill download` and `ng_download_dataset_from_hf`: a dataset from the Hugging Face Hub, as files of rows."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from rollmill.cli.ng import Ng
from rollmill.cli.say import say
from rollmill.cli.spelling import add_options, spelled
from rollmill.config import load
from rollmill.data.hub import Hub
from rollmill.errors import ConfigError
from rollmill.model import Secret

ABOUT = "Fetch a dataset from the Hugging Face Hub: one file of it, one split, or all its splits."


class DownloadOptions(Struct, frozen=True, kw_only=True):
    """What is fetched, and where it goes."""

    repo_id: str
    """The dataset, as OWNER/NAME."""
    artifact_fpath: str | None = None
    """A file of the dataset. Not with `split`."""
    split: Literal["train", "validation", "test"] | None = None
    """A split of the dataset; without it and without `artifact_fpath` all of them are fetched."""
    output_fpath: str | None = None
    """The file to write; it needs `artifact_fpath` or `split`. Not with `output_dirpath`."""
    output_dirpath: str | None = None
    """The folder to write to: the file under its own name, or <split>.jsonl."""
    hf_token: Secret | None = None
    """The token, best from env.yaml; without it that of `hf auth login` or of $HF_TOKEN serves."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("download", help="fetch a dataset from the Hugging Face Hub", description=ABOUT)
    flags = {
        "--file": "artifact_fpath",
        "--split": "split",
        "--out": "output_fpath",
        "--out-dir": "output_dirpath",
    }
    add_options(parser, DownloadOptions, flags, names="OWNER/NAME", about="a dataset")
    parser.set_defaults(handler=_download)


def _download(arguments: argparse.Namespace) -> int:
    asked = spelled(arguments)
    return _run(asked.words, asked.named("repo_id"))


def _run(words: Sequence[str], initial: Mapping[str, Any] | None = None) -> int:
    config = load(words, options=DownloadOptions, initial=initial, models_given=True)
    for warning in config.warnings:
        say(warning)
    options = config.options
    _refuse_contradictions(options)
    hub = Hub(options.hf_token)
    for what, to in _wanted(options, hub):
        if options.artifact_fpath is not None:
            hub.download(options.repo_id, what, to)
        else:
            hub.download_split(options.repo_id, what, to)
        print(f"Downloaded {what} of {options.repo_id} to {to}")
    return 0


def _refuse_contradictions(options: DownloadOptions) -> None:
    if options.output_fpath is None and options.output_dirpath is None:
        raise ConfigError("where does it go? Give output_fpath or output_dirpath")
    if options.output_fpath is not None and options.output_dirpath is not None:
        raise ConfigError("output_fpath and output_dirpath exclude each other: give one of them")
    if options.artifact_fpath is not None and options.split is not None:
        raise ConfigError("artifact_fpath and split exclude each other: a file of the dataset, or a split of it")
    if options.output_fpath is not None and options.artifact_fpath is None and options.split is None:
        raise ConfigError("output_fpath is one file: give artifact_fpath or split; output_dirpath takes all splits")


def _wanted(options: DownloadOptions, hub: Hub) -> list[tuple[str, Path]]:
    """Files or splits, each with the place where it goes."""
    one = options.artifact_fpath or options.split
    if one is None:
        folder = Path(options.output_dirpath or "")
        found = hub.splits(options.repo_id)
        if not found:
            raise ConfigError(f"{options.repo_id} has no train.jsonl, validation.jsonl or test.jsonl; name a split")
        return [(split, folder / f"{split}.jsonl") for split in found]
    if options.output_fpath is not None:
        return [(one, Path(options.output_fpath))]
    name = Path(one).name if options.artifact_fpath else f"{one}.jsonl"
    return [(one, Path(options.output_dirpath or "") / name)]


NG_DOWNLOAD_DATASET_FROM_HF = Ng(about=ABOUT, options=DownloadOptions, run=_run)
