"""From a name to the code: which module holds a model backend, an agent or an environment."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
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

# What a model backend's folder holds beside backends.
_NO_BACKENDS = {"chat", "http", "weights"}


def environments() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(rollmill.environments.__path__))


def models() -> list[str]:
    names = (module.name for module in pkgutil.iter_modules(rollmill.models.__path__))
    return sorted(f"{name}_model" for name in names if name not in _NO_BACKENDS)


def agents() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(rollmill.agents.__path__))


def model(name: str) -> ModuleType:
    """The backend module that a configuration calls `openai_model`."""
    if name not in models():
        raise ConfigError(f"unknown model backend {name!r}{suggestion(name, models())}; known: {', '.join(models())}")
    return importlib.import_module(f"rollmill.models.{name.removesuffix('_model')}")


def agent(name: str) -> ModuleType:
    if name not in agents():
        raise ConfigError(f"unknown agent {name!r}{suggestion(name, agents())}; known: {', '.join(agents())}")
    return importlib.import_module(f"rollmill.agents.{name}")


def environment(name: str) -> type[Environment[Any]]:
    """An environment of this package by its name, or anybody's as `file.py`, `file.py:Class` or `module:Class`."""
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
        raise ConfigError(f"environment file {path}: there is no such file")
    # Two files may share a name; their folders tell them apart.
    name = f"rollmill_file_{path.stem}_{hashlib.blake2b(bytes(path), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"environment file {path}: not a Python file")
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
    except Exception as error:
        raise ConfigError(f"{name} could not be imported: {describe(error)}") from error
