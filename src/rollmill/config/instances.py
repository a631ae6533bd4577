"""Server instances: a name, one server type, one implementation, and its fields."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

from msgspec import Meta, Struct
from msgspec.structs import asdict

from rollmill.config.tree import Tree, below
from rollmill.config.typed import convert
from rollmill.errors import ConfigError, suggestion

Kind: TypeAlias = Literal["responses_api_models", "resources_servers", "responses_api_agents"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Domain: TypeAlias = Literal[
    "math",
    "coding",
    "agent",
    "knowledge",
    "instruction_following",
    "long_context",
    "safety",
    "games",
    "translation",
    "e2e",
    "rlhf",
    "other",
]
DOMAINS: tuple[Domain, ...] = get_args(Domain)


class Dataset(Struct, frozen=True, kw_only=True):
    """Rows that an instance offers. `extra` holds what only some tools read."""

    name: str
    type: Literal["train", "validation", "example", "benchmark"]
    jsonl_fpath: str
    num_repeats: Annotated[int, Meta(ge=1)] = 1
    license: str | None = None
    extra: dict[str, Any] = {}


class _Common(Struct, frozen=True, kw_only=True):
    entrypoint: str | None = None
    host: str | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    num_workers: Annotated[int, Meta(ge=1)] | None = None
    isolation: Literal["process", "venv"] | None = None
    url: str | None = None
    domain: Domain | None = None


class Instance(_Common, frozen=True, kw_only=True):
    """One model, environment or agent. `fields` holds everything its implementation was given."""

    name: str
    kind: Kind
    implementation: str
    fields: Mapping[str, Any] = {}
    datasets: tuple[Dataset, ...] = ()

    @property
    def at(self) -> str:
        """The dotted path of its fields."""
        return f"{self.name}.{self.kind}.{self.implementation}"

    def __repr__(self) -> str:
        return f"<Instance {self.at}>"  # fields may hold secrets


def looks_like_instance(value: Any) -> bool:
    return isinstance(value, dict) and any(kind in value for kind in KINDS)


def read_instance(name: str, value: Tree) -> Instance:
    """The instance under a top-level key. Raises `ConfigError` that says what is wrong with it."""
    kinds = [kind for kind in KINDS if kind in value]
    if len(kinds) > 1:
        raise ConfigError(f"{name}: expected one server type, got {' and '.join(kinds)}")
    kind = kinds[0]
    if beside := sorted(value.keys() - {kind}):
        raise ConfigError(f"{name}: expected nothing beside {kind}, got {', '.join(beside)}")
    implementation, fields = _only_implementation(f"{name}.{kind}", value[kind])
    at = f"{name}.{kind}.{implementation}"
    common = {key: fields[key] for key in _Common.__struct_fields__ if key in fields}
    if kind != "resources_servers":
        common.pop("domain", None)
    return Instance(
        name=name,
        kind=kind,
        implementation=implementation,
        fields=fields,
        datasets=_read_datasets(fields.get("datasets"), below(at, "datasets")),
        **asdict(convert(common, _Common, at)),
    )


def check_references(instances: Mapping[str, Instance], *, models_given: bool) -> None:
    """Raise `ConfigError` where a field names an instance that does not exist.

    With `models_given` models may be missing: the command brings its own.
    """
    for instance in instances.values():
        for at, kind, name in _references(instance.fields, instance.at):
            if kind not in KINDS:
                raise ConfigError(f'{below(at, "type")}: "{kind}" is not a server type{suggestion(kind, KINDS)}')
            target = instances.get(name)
            if target is not None and target.kind != kind:
                raise ConfigError(f'{at}: "{name}" is one of {target.kind}, not of {kind}')
            if target is None and not (models_given and kind == "responses_api_models"):
                raise ConfigError(f'{at}: {kind} has no instance "{name}"{_instead(name, kind, instances)}')


def _only_implementation(at: str, value: Any) -> tuple[str, Tree]:
    if not isinstance(value, dict) or len(value) != 1:
        got = " and ".join(sorted(value)) if isinstance(value, dict) and value else "none"
        raise ConfigError(f"{at}: expected one implementation, got {got}")
    [(implementation, fields)] = value.items()
    if not isinstance(fields, dict):
        raise ConfigError(f"{below(at, implementation)}: expected a mapping of fields, got {type(fields).__name__}")
    return implementation, fields


def _read_datasets(value: Any, at: str) -> tuple[Dataset, ...]:
    if not isinstance(value or [], list):
        raise ConfigError(f"{at}: expected a list, got {type(value).__name__}")
    return tuple(_read_dataset(row, below(at, index)) for index, row in enumerate(value or []))


def _read_dataset(row: Any, at: str) -> Dataset:
    if not isinstance(row, dict):
        raise ConfigError(f"{at}: expected a mapping with name, type and jsonl_fpath, got {type(row).__name__}")
    known = {key: row[key] for key in Dataset.__struct_fields__ if key in row and key != "extra"}
    extra = {key: value for key, value in row.items() if key not in known}
    return convert(known | {"extra": extra}, Dataset, at)


def _references(value: Any, at: str) -> Iterator[tuple[str, str, str]]:
    """Where a field names another instance: its dotted path, the server type and the name."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(item, below(at, index))
    if not isinstance(value, dict):
        return
    if value.keys() == {"type", "name"} and _names_a_kind(value["type"]):
        yield at, value["type"], str(value["name"])
    for key, item in value.items():
        yield from _references(item, below(at, key))


def _names_a_kind(text: Any) -> bool:
    return isinstance(text, str) and bool(difflib.get_close_matches(text, KINDS, n=1, cutoff=0.8))


def _instead(name: str, kind: str, instances: Mapping[str, Instance]) -> str:
    names = sorted(instance.name for instance in instances.values() if instance.kind == kind)
    return suggestion(name, names) or (
        f"; it has {', '.join(names)}" if names else "; a file in config_paths defines one"
    )
