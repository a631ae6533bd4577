"""Datasets that a configuration names and that are not here: fetched, or said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from rollmill.cli.say import say
from rollmill.config import Dataset, find_path
from rollmill.data.hub import Hub
from rollmill.errors import ConfigError
from rollmill.model import Secret


def missing_of(datasets: Iterable[Dataset]) -> list[Dataset]:
    return [one for one in datasets if find_path(one.jsonl_fpath, working_dir=Path.cwd()) is None]


def refuse(missing: Sequence[Dataset], *, downloads: bool) -> NoReturn:
    said = "; ".join(f"{one.name}, {one.jsonl_fpath}{_hint(one)}" for one in missing)
    how = "; +should_download=true fetches what has a source" if downloads else ""
    raise ConfigError(f"datasets are not here: {said}{how}")


def fetch(missing: Sequence[Dataset], preferred: str, token: str | None) -> None:
    """From where each says that it is. Nothing is fetched where one says nothing."""
    places = [_on_hub(one, preferred) for one in missing]
    for dataset, (repo, artifact) in zip(missing, places, strict=True):
        hub, to = Hub(Secret(str(token)) if token else None), Path(dataset.jsonl_fpath)
        say(f"Fetching {dataset.name} from {repo} to {to}")
        if artifact is None:
            hub.download_split(repo, dataset.type, to)
        else:
            hub.download(repo, artifact, to)


def _on_hub(dataset: Dataset, preferred: str) -> tuple[str, str | None]:
    """Its repository on the Hugging Face Hub, and the file of it, if one is named."""
    sources = {name: dataset.extra.get(f"{name}_identifier") for name in ("huggingface", "gitlab")}
    if source := dataset.extra.get("source"):
        sources[source.get("type")] = source
    hub = sources["huggingface"]
    if sources["gitlab"] and (not hub or preferred == "gitlab"):
        raise ConfigError(
            f"the dataset {dataset.name} is in GitLab, to which there is no way here: fetch it to {dataset.jsonl_fpath}"
        )
    if not hub or "repo_id" not in hub:
        raise ConfigError(f"the dataset {dataset.name} has no source: put it at {dataset.jsonl_fpath}{_hint(dataset)}")
    return hub["repo_id"], hub.get("artifact_fpath")


def _hint(dataset: Dataset) -> str:
    script = dataset.extra.get("prepare_script")
    return f" (its prepare_script makes it: {script})" if script else ""
