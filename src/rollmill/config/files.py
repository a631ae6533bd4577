"""Configuration files: where they lie, what they hold, which of them wins."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rollmill.config.interpolation import explain, resolve_key
from rollmill.config.tree import Tree, plain
from rollmill.errors import ConfigError, suggestion

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parents[1]

# Where NeMo Gym's folders lie in this package. Its models and agents have a folder each; ours share one.
_SHARED = {"responses_api_models": "models", "responses_api_agents": "agents"}
_FOLDERS = {"resources_servers": "environments", "environments": "environments", "models": "models", "agents": "agents"}


def find_path(path: str | Path, *, working_dir: Path) -> Path | None:
    """Where `path` lies: in the working directory, else in the package. None if it is in neither."""
    return next((place for place in places(path, working_dir) if place.exists()), None)


def places(path: str | Path, working_dir: Path) -> list[Path]:
    """Where a path is looked for, in this order."""
    given = Path(path).expanduser()
    if given.is_absolute():
        return [given]
    inside = _inside_package(given.parts)
    return [working_dir / given] if inside is None else [working_dir / given, inside]


def find_env(working_dir: Path) -> Path | None:
    """The nearest `env.yaml`, in the working directory or above it."""
    folders = [working_dir, *working_dir.parents]
    return next((folder / "env.yaml" for folder in folders if (folder / "env.yaml").is_file()), None)


def read(path: Path) -> Tree:
    """The mapping that a YAML file holds. Raises `ConfigError` that names the file and the line."""
    with _named(path):
        text = path.read_text(encoding="utf-8")
        if not _has_mapping(text, path):
            return {}
        return dict(plain(OmegaConf.to_container(OmegaConf.create(text), resolve=False)))


def read_verbatim(path: Path) -> Tree:
    """The same for a file in which nothing is an interpolation, whatever it looks like."""
    with _named(path):
        text = path.read_text(encoding="utf-8")
        return dict(plain(yaml.safe_load(text))) if _has_mapping(text, path) else {}


def _has_mapping(text: str, path: Path) -> bool:
    """Whether there is anything, and nothing else than a mapping."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None or root.tag == "tag:yaml.org,2002:null":
        return False
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}:{root.start_mark.line + 1}: expected a mapping (key: value)")
    return True


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What is wrong with a file is said with its name."""
    try:
        yield
    except yaml.YAMLError as error:
        raise ConfigError(_yaml_problem(path, error)) from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {explain(error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def read_all(paths: Iterable[str], working_dir: Path) -> list[tuple[Path, Tree]]:
    """The files and all that they include, lowest first."""
    return list(_included(paths, working_dir, set()))


def listed_paths(tree: Tree, file: Path | None = None) -> list[str]:
    """The tree's `config_paths`, which may be an interpolation of the tree itself."""
    value = resolve_key(tree, "config_paths")
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        where = f"{file}: " if file else ""
        raise ConfigError(f"{where}config_paths: expected a list of paths such as [a.yaml,b.yaml], got {value!r}")
    return value


def _included(paths: Iterable[str], working_dir: Path, seen: set[Path]) -> Iterator[tuple[Path, Tree]]:
    fresh = []
    for path in paths:
        found = _located(path, working_dir)
        if found in seen:
            log.warning("%s is named more than once in config_paths; it is merged once", path)
            continue
        seen.add(found)
        fresh.append(found)
    for file in fresh:
        tree = read(file)
        yield from _included(listed_paths(tree, file), working_dir, seen)
        yield file, {key: value for key, value in tree.items() if key != "config_paths"}


def _located(path: str, working_dir: Path) -> Path:
    found = find_path(path, working_dir=working_dir)
    if found is None:
        looked_at = places(path, working_dir)
        near = next(filter(None, map(_near_miss, reversed(looked_at))), "")
        raise ConfigError(f'config file "{path}" not found; looked at {" and ".join(map(str, looked_at))}{near}')
    return found.resolve()


def _inside_package(parts: Sequence[str]) -> Path | None:
    match parts:
        case [top, _, "configs", *rest] if top in _SHARED and rest:
            return PACKAGE.joinpath(_SHARED[top], "configs", *rest)
        case [top, *rest] if top in _FOLDERS and rest:
            return PACKAGE.joinpath(_FOLDERS[top], *rest)
    return None


def _near_miss(place: Path) -> str:
    """A suggestion for the first part of the path that does not exist."""
    missing = next(part for part in [*reversed(place.parents), place] if not part.exists())
    names = [path.name for path in missing.parent.iterdir()] if missing.parent.is_dir() else []
    return suggestion(missing.name, names)


def _yaml_problem(path: Path, error: yaml.YAMLError) -> str:
    mark: Any = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    return f"{place}: {getattr(error, 'problem', None) or str(error).splitlines()[0]}"
