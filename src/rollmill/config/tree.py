"""A configuration while it is put together: plain dictionaries, lists and scalars."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Tree: TypeAlias = dict[str, Any]

MISSING = "???"
"""A value that somebody else has to give."""

_REFERENCE = re.compile(r"\$\{\s*(?:(inherit_from|copy)\s*:)?\s*([^\s{}$:,.\[\]][^\s{}$:,\[\]]*)\s*\}")


def plain(value: Any) -> Any:
    """`value` with dictionaries whose keys are all text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def merge(lower: Any, upper: Any) -> Any:
    """`upper` over `lower`: mappings key by key, anything else whole. A `???` hides nothing."""
    if upper == MISSING and lower is not None:
        return lower
    below = block(lower) if isinstance(upper, dict) else None
    if below is None:
        return upper
    return below | {key: merge(below.get(key), value) for key, value in upper.items()}


def block(value: Any) -> Tree | None:
    """`value` as a mapping into which keys can be merged; a reference to a block elsewhere becomes a directive."""
    if isinstance(value, dict):
        return value
    reference = referenced(value)
    return None if reference is None else {f"_{reference[0] or 'copy'}": reference[1]}


def referenced(value: Any) -> tuple[str, str] | None:
    """The verb and the path of `${inherit_from:path}`, `${copy:path}` and, with no verb, `${path}`."""
    match = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    return (match[1] or "", match[2]) if match else None


def below(at: str, key: str | int) -> str:
    """The dotted path of what lies under `key`."""
    if isinstance(key, int):
        return f"{at}[{key}]"
    return f"{at}.{key}" if at else key


def leaves(node: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar with its dotted path."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, below(at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from leaves(value, below(at, index))
    else:
        yield at, node
