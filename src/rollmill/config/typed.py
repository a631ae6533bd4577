"""From a plain tree to a typed struct; a mistake is named by its dotted key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from rollmill.config.secrets import is_secret
from rollmill.config.tree import below
from rollmill.errors import ConfigError, suggestion
from rollmill.model import MASK, Secret

T = TypeVar("T")


def convert(value: Any, kind: type[T], at: str = "") -> T:
    """`value` as a `kind`; text such as "8" counts as a number. `at` is the dotted path at which it stands.

    Raises `ConfigError`: an unknown key, a missing one or a wrong type, always with the whole dotted key.
    """
    _check(inspect.type_info(kind), value, at)
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), value, at)) from None


def shown(value: Any, key: str = "") -> str:
    """A value as an error quotes it."""
    if isinstance(value, Secret) or is_secret(re.split(r"[.\[]", key)[-1]):
        return MASK
    try:
        text = msgspec.json.encode(value).decode()
    except TypeError:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _decode(kind: type, value: Any) -> Any:
    if kind is Secret and isinstance(value, Secret):
        return value
    if kind is Secret and isinstance(value, str | int | float):
        return Secret(str(value))
    # msgspec adds the place to a TypeError.
    raise TypeError(f"expected {'str' if kind is Secret else kind.__name__}")


def _check(kind: inspect.Type, value: Any, at: str) -> None:
    """What msgspec does not report in a way that helps: unknown keys, missing keys, wrong choices."""
    match kind:
        case inspect.StructType(fields=fields) if isinstance(value, dict):
            _check_struct(fields, value, at)
        case inspect.DictType(value_type=inner) if isinstance(value, dict):
            for key, item in value.items():
                _check(inner, item, below(at, key))
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner) if isinstance(value, list):
            for index, item in enumerate(value):
                _check(inner, item, below(at, index))
        case inspect.LiteralType(values=choices) if isinstance(value, str):
            _check_choice([str(choice) for choice in choices], value, at)
        case inspect.EnumType(cls=cls) if isinstance(value, str):
            _check_choice([str(member.value) for member in cls], value, at)
        case inspect.UnionType(types=kinds):
            # Where several kinds could be meant, msgspec decides.
            possible = [kind for kind in kinds if _could_be(kind, value)]
            if len(possible) == 1:
                _check(possible[0], value, at)
        case inspect.Metadata(type=inner):
            _check(inner, value, at)


def _check_struct(fields: Iterable[inspect.Field], value: dict[str, Any], at: str) -> None:
    known = {field.encode_name: field for field in fields}
    for key, item in value.items():
        if key not in known:
            raise ConfigError(f"{below(at, key)}: unknown key{suggestion(key, known)}")
        _check(known[key].type, item, below(at, key))
    missing = [below(at, key) for key, field in known.items() if field.required and key not in value]
    if missing:
        raise ConfigError(f"missing: {', '.join(missing)}; for example +{missing[0]}=…")


def _check_choice(choices: list[str], value: str, at: str) -> None:
    if value not in choices:
        raise ConfigError(f'{at}: "{value}" is not one of {", ".join(choices)}{suggestion(value, choices)}')


def _could_be(kind: inspect.Type, value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(kind, inspect.StructType | inspect.DictType)
    if isinstance(value, list):
        return isinstance(kind, inspect.ListType | inspect.VarTupleType)
    if isinstance(value, str):
        # Text may also be a number or a flag that came through an environment variable.
        return not isinstance(kind, inspect.StructType | inspect.DictType | inspect.ListType | inspect.NoneType)
    return False


def _explain(message: str, value: Any, at: str) -> str:
    problem, _, where = message.partition(" - at ")
    key = at
    for name, index in re.findall(r"\.([^.\[`]+)|\[(\d+)\]", where.partition("[...]")[0]):
        step: str | int = name or int(index)
        key, value = below(key, step), value[step]
    problem = problem.replace("`", "").replace(" | ", " or ")
    problem = problem[:1].lower() + problem[1:]
    if problem.startswith("expected") and "[...]" not in where:
        problem = f"{problem.partition(', got')[0]}, got {shown(value, key)}"
        if problem.startswith("expected str") and isinstance(value, int | float):
            problem += "; quote it"
    return f"{key}: {problem}"
