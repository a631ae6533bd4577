"""`${a.b}` and `${oc.env:VAR,default}`: OmegaConf resolves them, and its errors become ours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from rollmill.config.tree import Tree, plain
from rollmill.errors import ConfigError, suggestion

_NO_KEY = re.compile(r"Interpolation key '(.+?)' not found")
_NO_VARIABLE = re.compile(r"Environment variable '(.+?)' not found")
_CIRCLE = "interpolations refer to each other in a circle"


def resolve(tree: Tree) -> Tree:
    """The tree with every interpolation replaced by its value."""
    try:
        return dict(plain(OmegaConf.to_container(OmegaConf.create(tree), resolve=True)))
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error, tree)) from None
    except RecursionError:
        raise ConfigError(_CIRCLE) from None


def resolve_key(tree: Tree, key: str) -> Any:
    """One top-level value, resolved while the rest of the tree may not be ready yet."""
    try:
        value = OmegaConf.create(tree).get(key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error, tree)) from None
    except RecursionError:
        raise ConfigError(_CIRCLE) from None


def explain(error: OmegaConfBaseException, known: Iterable[str] = ()) -> str:
    """OmegaConf's error in one line: where, what, and what to do."""
    where = f"{error.full_key}: " if error.full_key else ""
    message = str(error).splitlines()[0]
    if no_key := _NO_KEY.search(message):
        key = no_key[1]
        return f'{where}"{key}" is not set{suggestion(key, known)}; set it in env.yaml or pass +{key}=…'
    if no_variable := _NO_VARIABLE.search(message):
        name = no_variable[1]
        return f"{where}environment variable {name} is not set; export it or write ${{oc.env:{name},default}}"
    if "recursi" in message.lower():
        return f"{where}{_CIRCLE}"
    if isinstance(error, GrammarParseError):
        return f"{where}malformed interpolation: {message}"
    return f"{where}{message[:1].lower()}{message[1:]}"
