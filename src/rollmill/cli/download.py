"""`rollmill download` and `ng_download_dataset_from_hf`: a dataset from the Hugging Face Hub, as files of rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
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
    for what, to in _fetched(options, Hub(options.hf_token)):
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


def _fetched(options: DownloadOptions, hub: Hub) -> Iterator[tuple[str, Path]]:
    """What was fetched, some after the other, and where to."""
    repo, folder = options.repo_id, Path(options.output_dirpath or "")
    if options.artifact_fpath is not None:
        to = Path(options.output_fpath or folder / Path(options.artifact_fpath).name)
        hub.download(repo, options.artifact_fpath, to)
        yield options.artifact_fpath, to
    elif options.split is not None:
        to = Path(options.output_fpath or folder / f"{options.split}.jsonl")
        hub.download_split(repo, options.split, to)
        yield options.split, to
    else:
        found = hub.splits(repo)
        if not found:
            raise ConfigError(
                f"{repo} has no file train.jsonl, validation.jsonl or test.jsonl: give split or artifact_fpath"
            )
        for split, file in found.items():
            hub.download(repo, file, folder / f"{split}.jsonl")
            yield split, folder / f"{split}.jsonl"


NG_DOWNLOAD_DATASET_FROM_HF = Ng(about=ABOUT, options=DownloadOptions, run=_run)
