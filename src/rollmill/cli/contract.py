"""The test kit on a server folder: what can be checked of an environment without its author."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from rollmill import plugins
from rollmill.cli.catalog import beside, declared
from rollmill.cli.folders import Folder
from rollmill.config import Instance, load
from rollmill.environment import Environment
from rollmill.errors import CallerError, describe
from rollmill.instances import other_models, own_fields
from rollmill.model import Scripted
from rollmill.taskset import from_jsonl
from rollmill.testing import check_environment
from rollmill.types import Task

_TASKS = 5


class Finding(Struct, frozen=True):
    """What came out, in a sentence."""

    kept: bool
    said: str


class _Nothing(Struct):
    """A command without options."""


def check(folder: Folder) -> Finding:
    """Whether an environment keeps its contract on its example tasks, or on some that it makes itself."""
    if folder.kind != "resources_servers":
        return Finding(True, "not checked: the test kit for folders is for environments")
    try:
        entrypoint = declared(folder.kind, folder.name, "entrypoint")
        file = plugins.own_file(folder.kind, folder.name, entrypoint) if folder.own else None
        if file is not None and plugins.is_program(file):
            return Finding(True, "not checked: it is a program, and its own tests have to say whether it works")
        return _checked(folder, plugins.environment(folder.name, entrypoint))
    except CallerError as error:
        return Finding(False, str(error))
    except Exception as error:  # noqa: BLE001 - whatever somebody's own code raises
        return Finding(False, describe(error))


def _checked(folder: Folder, kind: type[Environment[Any]]) -> Finding:
    instance = _instance(folder)
    config = own_fields(instance) if instance else {}
    tasks = _tasks(folder, kind, config)
    if not tasks:
        return Finding(True, "not checked: there is no data/example.jsonl to play")
    # Who judges, or plays a user, says the same to everything here.
    models = {name: Scripted("ok") for pair in _other_models(instance) for name in pair}
    asyncio.run(check_environment(kind, tasks, config=config, models=models))
    return Finding(True, f"kept on {len(tasks)} tasks; what a right answer earns, only its own tests know")


def _instance(folder: Folder) -> Instance | None:
    """The environment as the file beside it configures it."""
    path = beside(folder.kind, folder.name, f"configs/{folder.name}.yaml")
    if path is None:
        return None
    instances = load([], options=_Nothing, files=[str(path)], models_given=True).instances.values()
    return next((one for one in instances if (one.kind, one.implementation) == (folder.kind, folder.name)), None)


def _other_models(instance: Instance | None) -> Iterable[tuple[str, str]]:
    return other_models(instance).items() if instance else ()


def _tasks(folder: Folder, kind: type[Environment[Any]], config: dict[str, Any]) -> Sequence[Task]:
    path = folder.path / "data" / "example.jsonl"
    if path.is_file():
        return list(from_jsonl(path, kind.task_type))
    return list(islice(kind.tasks(config, 0), _TASKS)) if kind.makes_tasks() else []
