"""What there is to play with: this package's and somebody's own, by what their classes and files declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from rollmill import plugins
from rollmill.config import Kind, find_path
from rollmill.config.files import read
from rollmill.environment import Environment, Verification
from rollmill.errors import CallerError
from rollmill.taskset import read_rows


class Listed(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Something that a configuration can name."""

    name: str
    own: bool
    """Whether it is somebody's own folder, beside the working directory."""
    program: bool = False
    """Whether it is run as a service: nothing can be read from its code."""
    fault: str | None = None
    """Why it cannot be used."""


class ListedEnvironment(Listed, frozen=True, kw_only=True, tag="environment"):
    """What is None is not known, of a program for example."""

    trains: str | None = None
    tools: list[str] | None = None
    stateful: bool | None = None
    verification: Verification | None = None
    rewards: list[str] | None = None
    """Its objectives; none where it judges nothing."""
    examples: int = 0
    makes_tasks: bool = False


class _Part(Listed, frozen=True, kw_only=True):
    about: str = ""
    fields: list[str] | None = None
    """What its configuration may say."""


class ListedModel(_Part, frozen=True, kw_only=True, tag="model"):
    """A model backend."""


class ListedAgent(_Part, frozen=True, kw_only=True, tag="agent"):
    """An agent."""


def environments() -> Iterator[ListedEnvironment]:
    for name in _names("resources_servers", plugins.environments()):
        yield _listed("resources_servers", name, ListedEnvironment, plugins.environment, _of_class)


def models() -> Iterator[ListedModel]:
    for name in _names("responses_api_models", plugins.models()):
        yield _listed("responses_api_models", name, ListedModel, plugins.model, _of_module)


def agents() -> Iterator[ListedAgent]:
    for name in _names("responses_api_agents", plugins.agents()):
        yield _listed("responses_api_agents", name, ListedAgent, plugins.agent, _of_module)


def _names(kind: Kind, known: Iterable[str]) -> list[str]:
    own = {name for name, folder in plugins.own_folders(kind).items() if _holds_a_server(folder)}
    return sorted({*known, *own})


def _holds_a_server(folder: Path) -> bool:
    return (folder / plugins.ENTRYPOINT).is_file() or (folder / "configs" / f"{folder.name}.yaml").is_file()


def _listed(
    kind: Kind,
    name: str,
    listed: Callable[..., Any],
    load: Callable[[str, str | None], Any],
    facts: Callable[[Any], dict[str, Any]],
) -> Any:
    """What is known of one, as much as can be read."""
    known: dict[str, Any] = {"name": name, "own": False}
    try:
        if kind == "resources_servers":
            known |= {"trains": declared(kind, name, "domain"), "examples": _examples(name)}
        entrypoint = declared(kind, name, "entrypoint")
        file = plugins.own_file(kind, name, entrypoint)
        known["own"] = file is not None
        known["program"] = file is not None and plugins.is_program(file)
        if not known["program"]:
            known |= facts(load(name, entrypoint))
    except CallerError as error:
        known["fault"] = str(error)
    return listed(**known)


def declared(kind: Kind, name: str, field: str) -> str | None:
    """A field of an implementation, as it is written in the file that lies beside it."""
    path = beside(kind, name, f"configs/{name}.yaml")
    tree = read(path) if path else {}
    blocks = (block.get(kind) for block in tree.values() if isinstance(block, dict))
    found = (block[name] for block in blocks if isinstance(block, dict) and isinstance(block.get(name), dict))
    fields: dict[str, Any] = next(found, {})
    value = fields.get(field)
    return value if isinstance(value, str) else None


def beside(kind: Kind, name: str, path: str) -> Path | None:
    """A file in the folder of an implementation: in somebody's own, else in this package's."""
    own = plugins.own_folders(kind).get(name)
    if own is not None and (own / path).exists():
        return own / path
    return find_path(f"{kind}/{name}/{path}", working_dir=Path.cwd())


def _examples(name: str) -> int:
    path = beside("resources_servers", name, "data/example.jsonl")
    return sum(1 for _ in read_rows(path)) if path else 0


def _of_class(kind: type[Environment[Any]]) -> dict[str, Any]:
    weighed = [name for name, part in kind.rewards.items() if part.weight]
    in_one = ["verify"] if kind.verify is not Environment.verify else []
    says = {"trains": kind.domain} if kind.domain != Environment.domain else {}
    return says | {
        "tools": list(kind.tools),
        "stateful": {"stateless": False, "replay": True}.get(kind.verification),
        "verification": kind.verification,
        "rewards": weighed or in_one,
        "makes_tasks": kind.makes_tasks(),
    }


def _of_module(module: ModuleType) -> dict[str, Any]:
    fields = getattr(module.Fields, "__struct_fields__", None)
    return {"about": (module.__doc__ or "").partition("\n")[0], "fields": None if fields is None else list(fields)}
