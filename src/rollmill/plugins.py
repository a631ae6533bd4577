"""From a name to the code: which module holds a model backend, an agent or an environment.

A name is one of this package's, or a folder beside the working directory as NeMo Gym lays them out:
`resources_servers/NAME`, `responses_api_models/NAME`, `responses_api_agents/NAME`, each with its `app.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import rollmill.agents
import rollmill.environments
import rollmill.models
from rollmill.environment import Environment
from rollmill.errors import CallerError, ConfigError, describe, suggestion

ENTRYPOINT = "app.py"
_STEPS = 4
_IMPORTS_US = re.compile(r"^\s*(from|import) rollmill\b", re.MULTILINE)
# What a model backend's folder holds beside backends.
_NO_BACKENDS = {"chat", "http", "weights"}


def environments() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(rollmill.environments.__path__))


def models() -> list[str]:
    names = (module.name for module in pkgutil.iter_modules(rollmill.models.__path__))
    return sorted(f"{name}_model" for name in names if name not in _NO_BACKENDS)


def agents() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(rollmill.agents.__path__))


_KNOWN = {"resources_servers": environments, "responses_api_models": models, "responses_api_agents": agents}
# Where somebody's own of a kind are; this package and NeMo Gym have two words for environments.
_FOLDERS = {kind: (kind, "environments") if kind == "resources_servers" else (kind,) for kind in _KNOWN}


def own_folders(kind: str) -> dict[str, Path]:
    """Somebody's own server folders beside the working directory, by their names; of two, the first is meant."""
    places = [place for folder in map(Path, _FOLDERS[kind]) if folder.is_dir() for place in sorted(folder.iterdir())]
    own = [place for place in places if place.is_dir() and not place.name.startswith((".", "_"))]
    return {place.name: place for place in reversed(own)}


def own_file(kind: str, name: str, entrypoint: str | None = None) -> Path | None:
    """The entrypoint of somebody's own server folder beside the working directory, if there is one."""
    if "/" in name or ":" in name:
        # A path is a file of its own, not the name of a folder.
        return None
    places = [Path(folder, name) for folder in _FOLDERS[kind]]
    files = [place / (entrypoint or ENTRYPOINT) for place in places if place.is_dir()]
    # One of this package's may have a folder here with nothing but its data.
    found = [file for file in files if file.is_file() or name not in _KNOWN[kind]()]
    return found[0].absolute() if found else None


def is_program(file: Path) -> bool:
    """Whether an entrypoint is to be run, because it defines nothing of ours: it never imports this package."""
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such entrypoint")
    return file.suffix != ".py" or not _IMPORTS_US.search(file.read_text("utf-8", "replace"))


def model(name: str, entrypoint: str | None = None) -> ModuleType:
    """The backend module that a configuration calls `openai_model`."""
    if file := own_file("responses_api_models", name, entrypoint):
        return _maker(file, "model", "reply")
    if name not in models():
        raise ConfigError(f"unknown model backend {name!r}{suggestion(name, models())}; known: {', '.join(models())}")
    return importlib.import_module(f"rollmill.models.{name.removesuffix('_model')}")


def agent(name: str, entrypoint: str | None = None) -> ModuleType:
    if file := own_file("responses_api_agents", name, entrypoint):
        return _maker(file, "agent", "play")
    if name not in agents():
        raise ConfigError(f"unknown agent {name!r}{suggestion(name, agents())}; known: {', '.join(agents())}")
    return importlib.import_module(f"rollmill.agents.{name}")


def environment(name: str, entrypoint: str | None = None) -> type[Environment[Any]]:
    """An environment by its name, or anybody's as `file.py`, `file.py:Class` or `module:Class`."""
    if file := own_file("resources_servers", name, entrypoint):
        return _environment_in(_ours(file), "")
    place, _, wanted = name.partition(":")
    if place.endswith(".py"):
        return _environment_in(_load_file(Path(place)), wanted)
    if wanted:
        return _environment_in(_import(place), wanted)
    if name not in environments():
        raise ConfigError(
            f"unknown environment {name!r}{suggestion(name, environments())}; known: {', '.join(environments())}, "
            "or a file of your own as path/to/file.py:Class"
        )
    return _environment_in(importlib.import_module(f"rollmill.environments.{name}"), "")


def environment_name(name: str) -> str:
    """What an environment is called whatever its file was called by: `FILE.py:Class` for one in a file."""
    place = name.partition(":")[0]
    return f"{Path(place).name}:{environment(name).__name__}" if place.endswith(".py") else name


def _maker(file: Path, what: str, method: str) -> ModuleType:
    """A module with `Fields` and `make`, as this package's own are; one class with the method stands for both."""
    module = _ours(file)
    if hasattr(module, "make"):
        if not hasattr(module, "Fields"):
            raise ConfigError(f"{file} has make(), but no `Fields`: a struct with what its configuration may say")
        return module
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and callable(getattr(kind, method, None))
    ]
    if len(kinds) != 1:
        raise ConfigError(f"{file} has {len(kinds)} classes with {method}(): a {what} is one, or make() and `Fields`")
    module.Fields, module.make = dict[str, Any], lambda fields: kinds[0](**fields)  # type: ignore[attr-defined]
    return module


def _ours(file: Path) -> ModuleType:
    if is_program(file):
        raise ConfigError(f"{file} is a program of its own: it plays as a service, which `ng_run` starts")
    return _load_file(file)


def _environment_in(module: ModuleType, wanted: str) -> type[Environment[Any]]:
    kinds = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    }
    # What a file defines counts, not what it imports; a package's own module only imports.
    kinds = {name: kind for name, kind in kinds.items() if kind.__module__ == module.__name__} or kinds
    if wanted in kinds:
        return kinds[wanted]
    names = ", ".join(kinds) or "none"
    if wanted or len(kinds) != 1:
        missing = f"no environment {wanted!r}{suggestion(wanted, kinds)}" if wanted else "not exactly one environment"
        raise ConfigError(f"{module.__file__} has {missing}; it has {names}; name one as FILE.py:CLASS")
    return next(iter(kinds.values()))


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    # Two files may share a name; their folders tell them apart.
    name = f"rollmill_file_{path.stem}_{hashlib.blake2b(bytes(path), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    # As for a script: what lies beside the file can be imported.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        with _importing(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(name: str) -> ModuleType:
    with _importing(name):
        return importlib.import_module(name)


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Says which plugin failed to import and where, instead of a traceback through this package."""
    try:
        yield
    except CallerError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name} could not be imported: {describe(error)}{_way(error)}") from error


def _way(error: BaseException) -> str:
    """The last steps to where it was raised, those of the import machinery left out, if there are several."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "importlib" not in frame.filename]
    steps = [f"\n  {frame.filename}:{frame.lineno}: {frame.line}" for frame in frames if frame.filename != __file__]
    return "".join(steps[-_STEPS:]) if len(steps) > 1 else ""
