"""Server folders, as `TYPE/NAME` beside the working directory, or of the environments of this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from rollmill import plugins
from rollmill.cli.catalog import declared
from rollmill.config import KINDS, Kind
from rollmill.config.files import PACKAGE
from rollmill.errors import ConfigError, suggestion

# This package and NeMo Gym have two words for environments.
_TYPES: dict[str, Kind] = {**{kind: kind for kind in KINDS}, "environments": "resources_servers"}


class Folder(Struct, frozen=True):
    """The folder of one server."""

    kind: Kind
    name: str
    path: Path
    own: bool
    """Whether it is somebody's own, and not this package's."""

    @property
    def label(self) -> str:
        """The words by which it is found again."""
        return f"{self.path.parent.name if self.own else self.kind}/{self.name}"


def folder_of(entrypoint: str) -> Folder:
    """The folder that is meant by `TYPE/NAME`. Raises `ConfigError` where there is none."""
    kind, name = read_entrypoint(entrypoint)
    path = Path(entrypoint)
    if path.is_dir() and _has_code(kind, name):
        return Folder(kind, name, path.absolute(), own=True)
    if kind == "resources_servers" and name in plugins.environments():
        return _of_package(name)
    known = {*plugins.own_folders(kind), *(plugins.environments() if kind == "resources_servers" else ())}
    raise ConfigError(f"entrypoint: there is no folder {entrypoint} here{suggestion(name, known)}")


def read_entrypoint(entrypoint: str) -> tuple[Kind, str]:
    """The server type and the name. Raises `ConfigError` where it is not these two."""
    parts = Path(entrypoint).parts
    if len(parts) != 2 or parts[0] not in _TYPES or parts[1] == "..":
        raise ConfigError(f'entrypoint: expected TYPE/NAME such as resources_servers/shop, got "{entrypoint}"')
    return _TYPES[parts[0]], parts[1]


def every_folder() -> Iterator[Folder]:
    """All of them, somebody's own instead of this package's where both have a name."""
    for kind in KINDS:
        own = {
            name: Folder(kind, name, path.absolute(), own=True)
            for name, path in plugins.own_folders(kind).items()
            if _has_code(kind, name)
        }
        known = plugins.environments() if kind == "resources_servers" else ()
        yield from ({name: _of_package(name) for name in known} | own).values()


def _has_code(kind: Kind, name: str) -> bool:
    """Whether somebody's folder is more than data for one of this package's."""
    try:
        entrypoint = declared(kind, name, "entrypoint")
    except ConfigError:
        # What is wrong with its configuration is said when it is tested.
        entrypoint = None
    return plugins.own_file(kind, name, entrypoint) is not None


def _of_package(name: str) -> Folder:
    return Folder("resources_servers", name, PACKAGE / "environments" / name, own=False)
