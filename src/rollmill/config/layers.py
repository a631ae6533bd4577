"""All layers into one configuration, in the order in which one wins over another."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from rollmill.config import files as yaml_files
from rollmill.config import overrides, secrets
from rollmill.config.directives import apply_directives
from rollmill.config.instances import KINDS, Instance, check_references, looks_like_instance, read_instance
from rollmill.config.interpolation import resolve, resolve_key
from rollmill.config.tree import MISSING, Tree, leaves, merge, plain
from rollmill.config.typed import convert
from rollmill.errors import ConfigError

T = TypeVar("T", bound=Struct)

_VARIABLE = re.compile(r"(?<!\\)\$\{([A-Za-z_]\w*)\}")

POLICY = ("policy_base_url", "policy_api_key", "policy_model_name")
"""Variables that every model file of NeMo Gym refers to."""

RESERVED = frozenset(
    {
        *POLICY,
        "config_paths",
        "default_host",
        "dry_run",
        "error_on_almost_servers",
        "global_aiohttp_connector_limit",
        "global_aiohttp_connector_limit_per_host",
        "h",
        "head_server",
        "help",
        "json",
        "model_endpoint_readiness_timeout_seconds",
        "nemo_gym_log_dir",
        "pip_install_verbose",
        "port_range_high",
        "port_range_low",
        "profiling_enabled",
        "profiling_results_dirpath",
        "ray_head_node_address",
        "skip_venv_if_present",
        "use_absolute_ip",
        "uv_cache_dir",
        "uv_pip_set_python",
        "uv_venv_dir",
        "uvicorn_logging_show_200_ok",
        "verbose",
    }
)
"""Top-level keys that have a meaning in some command, and so are never instances or misspelt options."""


class Config(Struct, Generic[T], frozen=True):
    """What a command was asked to do."""

    options: T
    instances: dict[str, Instance]
    variables: dict[str, Any]
    tree: Tree
    """All of it, resolved. It holds secrets: print and store `masked(config)`."""
    warnings: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    """The files that were read, lowest first."""

    def __repr__(self) -> str:
        return f"<Config of {', '.join(self.tree)}>"


def load(
    words: Sequence[str],
    *,
    options: type[T],
    working_dir: Path | None = None,
    files: Sequence[str] = (),
    initial: Mapping[str, Any] | None = None,
    models_given: bool = False,
    running: Mapping[str, Any] | None = None,
) -> Config[T]:
    """Read what the command line's `words` ask for; `options` names the keys of this command.

    `files` lie below those that the words name. `initial` lies under the command line and over the files. With
    `models_given` the command brings its own model, so references to one need not be defined. `running` is the tree of
    a system that runs, in place of all files; of `env.yaml` only the options count then. Raises `ConfigError`.
    """
    names = [field.encode_name for field in fields(options)]
    place, known = (working_dir or Path.cwd()).absolute(), {*names, *RESERVED}
    given = plain(initial or {})
    if running is None:
        raw, sources = _layered(words, place, files, given, known=known)
    else:
        raw, sources = _over(plain(running), words, place, given, known=known)
    expanded = apply_directives(raw)
    _refuse_missing(expanded)
    _refuse_unset(expanded)
    tree = resolve(expanded)
    instances, faults = _instances(tree, skip=known)
    check_references(instances, models_given=models_given)
    variables = {key: value for key, value in tree.items() if key not in {*known, *instances}}
    return Config(
        options=convert({name: tree[name] for name in names if name in tree}, options),
        instances=instances,
        variables=variables | {key: tree[key] for key in POLICY if key in tree and key not in names},
        tree=tree,
        warnings=(*faults, *_slips(variables, expanded, known)),
        sources=sources,
    )


def options_from(words: Sequence[str], options: type[T], initial: Mapping[str, Any] | None = None) -> T:
    """The options of a command that reads no configuration: its words, over `initial`. Raises `ConfigError`."""
    names = {field.encode_name for field in fields(options)}
    asked = [overrides.parse(word) for word in words]
    tree = resolve(overrides.apply(plain(initial or {}), asked, known=names | RESERVED))
    # What is meant for every command, and means nothing to this one, does no harm.
    return convert({key: value for key, value in tree.items() if key in names or key not in RESERVED}, options)


def masked(config: Config[Any] | Mapping[str, Any]) -> Tree:
    """The whole configuration without its secrets, to be printed or stored."""
    tree = config.tree if isinstance(config, Config) else plain(config)
    return dict(secrets.mask(tree, set(secrets.secret_values(tree))))


def masked_text(text: str, config: Config[Any]) -> str:
    """`text`, a command line for example, without the configuration's secrets."""
    return secrets.mask_text(text, set(secrets.secret_values(config.tree)))


def _layered(
    words: Sequence[str], working_dir: Path, lowest: Sequence[str], initial: Tree, *, known: set[str]
) -> tuple[Tree, tuple[Path, ...]]:
    """All layers merged, nothing resolved yet, and the files that they came from."""
    asked = [overrides.parse(word) for word in words]
    env_path = yaml_files.find_env(working_dir)
    upper = merge(yaml_files.read(env_path) if env_path else {}, initial)
    paths = [*lowest, *yaml_files.listed_paths(overrides.apply(upper, asked))]
    read = yaml_files.read_all(paths, working_dir)
    tree: Tree = {}
    for layer in (*(layer for _, layer in read), upper):
        tree = merge(tree, layer)
    tree = overrides.apply(tree, asked, known=known)
    if paths:
        tree["config_paths"] = paths
    return tree, (*(path for path, _ in read), *([env_path] if env_path else []))


def _over(
    running: Tree, words: Sequence[str], working_dir: Path, initial: Tree, *, known: set[str]
) -> tuple[Tree, tuple[Path, ...]]:
    env_path = yaml_files.find_env(working_dir)
    env = yaml_files.read(env_path) if env_path else {}
    options = {key: value for key, value in env.items() if key in known and key != "config_paths"}
    asked = [overrides.parse(word) for word in words]
    tree = merge(merge(running, options), initial)
    return overrides.apply(tree, asked, known=known), (env_path,) if env_path else ()


def peek(words: Sequence[str], names: Iterable[str], working_dir: Path | None = None) -> Tree:
    """What `env.yaml` and the words say of some keys, before it is known which files count."""
    env_path = yaml_files.find_env((working_dir or Path.cwd()).absolute())
    tree = overrides.apply(yaml_files.read(env_path) if env_path else {}, [overrides.parse(word) for word in words])
    return {name: resolve_key(tree, name) for name in names if name in tree}


def names_files(words: Sequence[str]) -> bool:
    """Whether the command line says which configuration it means."""
    return any(overrides.parse(word).path[0] == "config_paths" for word in words)


def _refuse_missing(tree: Tree) -> None:
    missing = [at for at, value in leaves(tree) if value == MISSING]
    if missing:
        lines = "".join(f"\n  {at}" for at in missing)
        raise ConfigError(f"these values are still {MISSING}; give each of them, for example +{missing[0]}=…{lines}")


def _refuse_unset(tree: Tree) -> None:
    """Name every variable that is referred to and not there, at once; other interpolations are resolved later."""
    unset: dict[str, str] = {}
    for at, value in leaves(tree):
        for key in _VARIABLE.findall(value) if isinstance(value, str) else ():
            if key not in tree:
                unset.setdefault(key, at)
    if len(unset) > 1:
        lines = "".join(f"\n  {key}, used by {at}" for key, at in unset.items())
        words = " ".join(f"+{key}=…" for key in unset)
        raise ConfigError(f"these variables are not set; set them in env.yaml or pass {words}{lines}")


def _instances(tree: Tree, skip: set[str]) -> tuple[dict[str, Instance], list[str]]:
    instances: dict[str, Instance] = {}
    faults: list[str] = []
    for name, value in tree.items():
        if name in skip or not looks_like_instance(value):
            continue
        try:
            instances[name] = read_instance(name, value)
        except ConfigError as error:
            if convert(tree.get("error_on_almost_servers", True), bool, "error_on_almost_servers"):
                raise
            faults.append(f"{error}; it is treated as a variable")
    return instances, faults


def _slips(variables: Tree, expanded: Tree, known: Iterable[str]) -> Iterator[str]:
    """Variables that nothing refers to and that are called almost like something known."""
    texts = [value for _, value in leaves(expanded) if isinstance(value, str) and "${" in value]
    for key, value in variables.items():
        near = _near(key, known)
        if near and not any(f"${{{key}" in text for text in texts):
            yield f'nothing reads "{key}"; did you mean "{near}"?'
        for inner in value if isinstance(value, dict) else ():
            if inner not in KINDS and (near := _near(inner, KINDS)):
                yield f'"{key}" is a variable: "{inner}" is not a server type; did you mean "{near}"?'


def _near(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.8)), None)
