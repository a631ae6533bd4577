"""`rollmill upload` and `ng_upload_dataset_to_hf`: a file of rows to the Hugging Face Hub."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from rollmill.cli.ng import Ng
from rollmill.cli.paths import existing
from rollmill.cli.say import say
from rollmill.cli.spelling import add_options, spelled
from rollmill.config import load, read_verbatim
from rollmill.data.hub import Hub, Upload
from rollmill.data.rollouts import read_fields
from rollmill.errors import ConfigError
from rollmill.model import Secret
from rollmill.taskset import read_rows

ABOUT = "Give a file of rows to the Hugging Face Hub. A dataset that is not there yet is made, and is private."


class UploadOptions(Struct, frozen=True, kw_only=True):
    """What is given, and where it goes: OWNER/PREFIX-DOMAIN-NAME."""

    input_jsonl_fpath: str
    """The file. It keeps its name."""
    hf_organization: str
    """The owner of the dataset."""
    resource_config_path: str
    """The configuration file of the environment that plays it, which names the domain."""
    dataset_name: str | None = None
    """What the dataset is called; by default as the environment."""
    hf_dataset_prefix: str = "Nemotron-RL"
    """What stands before the domain; it may be empty."""
    split: Literal["train", "validation", "test"] = "train"
    """Which split it is; each row of `train` has to be a task."""
    hf_collection_name: str | None = None
    """A collection of the owner's that the dataset is added to."""
    hf_collection_slug: str | None = None
    """What stands at the end of that collection's address."""
    create_pr: bool = False
    """Propose the change instead of making it, which needs no right to write."""
    revision: str | None = None
    """The branch that it goes to, or the pull request that it is added to."""
    commit_message: str | None = None
    """What the commit says."""
    commit_description: str | None = None
    """What it says below."""
    delete_from_gitlab: bool = False
    """Only false: there is no way to GitLab here."""
    hf_token: Secret | None = None
    """The token, best from env.yaml; without it that of `hf auth login` or of $HF_TOKEN serves."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("upload", help="give a file of rows to the Hugging Face Hub", description=ABOUT)
    flags = {
        "--owner": "hf_organization",
        "--config": "resource_config_path",
        "--name": "dataset_name",
        "--prefix": "hf_dataset_prefix",
        "--split": "split",
        "--pr": "create_pr",
        "--revision": "revision",
        "--message": "commit_message",
    }
    add_options(parser, UploadOptions, flags, names="FILE", about="a file of rows")
    parser.set_defaults(handler=_upload)


def _upload(arguments: argparse.Namespace) -> int:
    asked = spelled(arguments)
    return _run(asked.words, asked.named("input_jsonl_fpath"))


def _run(words: Sequence[str], initial: Mapping[str, Any] | None = None) -> int:
    config = load(words, options=UploadOptions, initial=initial, models_given=True)
    for warning in config.warnings:
        say(warning)
    options = config.options
    file = existing(options.input_jsonl_fpath, "input_jsonl_fpath")
    upload = Upload(
        file,
        _repo(options),
        collection=_collection(options),
        create_pr=options.create_pr,
        revision=options.revision,
        message=options.commit_message,
        description=options.commit_description,
    )
    if options.split == "train":
        _refuse_other_rows(file)
    print(f"Uploaded {file} to {upload.repo}: {Hub(options.hf_token).upload(upload)}")
    return 0


def _repo(options: UploadOptions) -> str:
    """NeMo Gym's way of naming."""
    if options.delete_from_gitlab:
        raise ConfigError("delete_from_gitlab: there is no way to GitLab here; upload without it, and delete it there")
    environment, domain = _environment(existing(options.resource_config_path, "resource_config_path"))
    parts = (options.hf_dataset_prefix, domain, options.dataset_name or environment)
    return f"{options.hf_organization}/{'-'.join(part for part in parts if part)}"


def _environment(path: Path) -> tuple[str, str]:
    """The environment of a configuration file, and its domain."""
    for value in read_verbatim(path).values():
        kinds = value.get("resources_servers") if isinstance(value, dict) else None
        for name, fields in kinds.items() if isinstance(kinds, dict) else ():
            return name, str((fields or {}).get("domain") or "").lower()
    raise ConfigError(f"resource_config_path: {path} has no resources_servers instance")


def _collection(options: UploadOptions) -> str | None:
    name, slug = options.hf_collection_name, options.hf_collection_slug
    if (name is None) is not (slug is None):
        raise ConfigError("hf_collection_name and hf_collection_slug belong together: give both or neither")
    return None if name is None else f"{options.hf_organization}/{name.lower().replace(' ', '-')}-{slug}"


def _refuse_other_rows(file: Path) -> None:
    for line, content in read_rows(file):
        if "responses_create_params" not in read_fields(content, f"{file}, line {line}"):
            raise ConfigError(f"{file}, line {line}: the row has no responses_create_params; only a task can train")


NG_UPLOAD_DATASET_TO_HF = Ng(about=ABOUT, options=UploadOptions, run=_run)
