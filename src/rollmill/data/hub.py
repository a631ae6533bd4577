"""Datasets on the Hugging Face Hub: fetched as files of rows, and given away."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from rollmill.data.scratch import scratch
from rollmill.data.written import write_rows
from rollmill.errors import ConfigError
from rollmill.model import MASK, Secret

SPLITS = ("train", "validation", "test")


class Hub:
    """The Hub, for one token or for whoever is logged in. Everything raises `ConfigError`."""

    def __init__(self, token: Secret | None = None) -> None:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise ConfigError("the Hugging Face Hub needs the extra: pip install 'rollmill[local]'") from None
        self._token = token
        self._api = HfApi(token=token.reveal() if token else None)

    def download(self, repo: str, artifact: str, to: Path) -> None:
        """Fetch one file of a dataset."""
        with scratch(to) as folder, self._named(f"{artifact} of {repo} could not be downloaded"):
            found = self._api.hf_hub_download(repo, artifact, repo_type="dataset", local_dir=folder)
            _put(Path(found), to, repo)

    def download_split(self, repo: str, split: str, to: Path) -> None:
        """Fetch a split: the file of that name, or else what the `datasets` package makes of the repository."""
        file = self.splits(repo).get(split)
        if file is not None:
            self.download(repo, file, to)
            return
        with scratch(to) as folder, self._named(f"the split {split} of {repo} could not be downloaded"):
            part = folder / to.name
            write_rows(part, folder, self._datasets(repo).load_dataset(repo, split=split, **self._stream()))
            _put(part, to, repo)

    def splits(self, repo: str) -> dict[str, str]:
        """The files of a dataset that are a split by their name."""
        with self._named(f"{repo} could not be looked at"):
            files = set(self._api.list_repo_files(repo, repo_type="dataset"))
        named = {split: (f"{split}.jsonl", f"data/{split}.jsonl") for split in SPLITS}
        return {split: name for split, names in named.items() for name in names if name in files}

    def upload(self, upload: Upload) -> str:
        """Give a file away, and say where it is. A dataset that is not there yet is made, and is private."""
        self._make(upload)
        with self._named(f"{upload.file} could not be uploaded to {upload.repo}"):
            done = self._api.upload_file(
                path_or_fileobj=upload.file,
                path_in_repo=upload.file.name,
                repo_id=upload.repo,
                repo_type="dataset",
                revision=upload.revision,
                commit_message=upload.message,
                commit_description=upload.description,
                create_pr=upload.create_pr,
            )
        if upload.collection is not None:
            self._collect(upload.repo, upload.collection)
        return str(done.pr_url or done.commit_url)

    def _make(self, upload: Upload) -> None:
        from huggingface_hub.errors import HfHubHTTPError

        with self._named(f"{upload.repo} could not be made"):
            try:
                self._api.create_repo(upload.repo, repo_type="dataset", private=True, exist_ok=True)
            except HfHubHTTPError as error:
                # Who may not make it may still propose a change.
                if not (upload.create_pr and error.response is not None and error.response.status_code == 403):
                    raise

    def _collect(self, repo: str, collection: str) -> None:
        with self._named(f"{repo} could not be added to the collection {collection}"):
            items = self._api.get_collection(collection).items
            if not any(item.item_type == "dataset" and item.item_id.lower() == repo.lower() for item in items):
                self._api.add_collection_item(collection, repo, "dataset", exists_ok=True)

    def _datasets(self, repo: str) -> Any:
        try:
            import datasets
        except ImportError:
            raise ConfigError(
                f"{repo} has no file train.jsonl, validation.jsonl or test.jsonl; to read it as a structured dataset "
                "needs the extra: pip install 'rollmill[data]'; or name a file of it as artifact_fpath"
            ) from None
        return datasets

    def _stream(self) -> dict[str, Any]:
        return {"streaming": True, "token": self._token.reveal() if self._token else None}

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """What goes wrong is one line, without the token."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            secret = self._token.reveal() if self._token else ""
            raise ConfigError(f"{what}: {said.replace(secret, MASK) if secret else said}") from error


class Upload(Struct, frozen=True):
    """A file, and where it goes."""

    file: Path
    repo: str
    collection: str | None = None
    create_pr: bool = False
    revision: str | None = None
    message: str | None = None
    description: str | None = None


def _put(part: Path, to: Path, repo: str) -> None:
    """What is there already stays if it is the same, and is never written over."""
    if to.exists() and not filecmp.cmp(part, to, shallow=False):
        raise ConfigError(f"{to} exists, and is not what {repo} has: move it away, or name another file")
    part.replace(to)
