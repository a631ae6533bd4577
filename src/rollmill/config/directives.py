"""Blocks that build on other blocks: `_inherit_from`, `_copy` and `_delete_key`, before any interpolation."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from rollmill.config.tree import MISSING, Tree, below, merge, referenced
from rollmill.errors import ConfigError, suggestion


def apply_directives(tree: Tree) -> Tree:
    """The tree with every block in its place. What was inherited has moved; what was copied is still there."""
    blocks = _Blocks(tree)
    expanded: Tree = blocks.expand(tree, "", ())
    for path in blocks.moved:
        _remove(expanded, path.split("."))
    return expanded


class _Source(Struct, frozen=True):
    """Which block a node builds on, and what is merged over it."""

    path: str
    moves: bool
    siblings: Tree = {}


class _Blocks:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.moved: set[str] = set()

    def expand(self, node: Any, at: str, chain: tuple[str, ...]) -> Any:
        """The node without directives. `chain` holds the sources that are being expanded around it."""
        if isinstance(node, list):
            return [self.expand(item, below(at, index), chain) for index, item in enumerate(node)]
        if source := _source(node, at):
            node = self._built(source, at, chain)
        if not isinstance(node, dict):
            return node
        return {key: self.expand(value, below(at, key), chain) for key, value in _kept(node, at).items()}

    def _built(self, source: _Source, at: str, chain: tuple[str, ...]) -> Any:
        if source.path in chain:
            raise ConfigError(f"{at}: blocks inherit in a circle: {' -> '.join((*chain, source.path))}")
        chain = (*chain, source.path)
        if source.moves:
            self.moved.add(source.path)
        base = self.expand(self._find(source.path, at, chain), source.path, chain)
        if base == MISSING or not source.siblings:
            return base
        if not isinstance(base, dict):
            raise ConfigError(f'{at}: "{source.path}" is not a mapping; nothing can be merged over it')
        return merge(base, source.siblings)

    def _find(self, path: str, at: str, chain: tuple[str, ...]) -> Any:
        node: Any = self.tree
        found = ""
        for part in path.split("."):
            if _source(node, found):
                node = self.expand(node, found, chain)
            if node == MISSING:
                return MISSING
            names = node if isinstance(node, dict) else {}
            if part not in names:
                near = suggestion(path, [below(found, name) for name in names])
                raise ConfigError(f'{at}: there is no "{path}" to build on{near}')
            node, found = names[part], below(found, part)
        return node


def _source(node: Any, at: str) -> _Source | None:
    if isinstance(node, str):
        reference = referenced(node)
        return _Source(reference[1], reference[0] == "inherit_from") if reference and reference[0] else None
    if not isinstance(node, dict):
        return None
    match [key for key in ("_inherit_from", "_copy") if key in node]:
        case []:
            return None
        case [key]:
            path, siblings = node[key], {name: value for name, value in node.items() if name != key}
            if not isinstance(path, str):
                raise ConfigError(f"{below(at, key)}: expected a dotted path, got {path!r}")
            return _Source(path.strip(), key == "_inherit_from", siblings)
    raise ConfigError(f"{at}: expected one of _inherit_from and _copy, got both")


def _kept(node: Tree, at: str) -> Tree:
    """The node without the keys that its `_delete_key` names."""
    if "_delete_key" not in node:
        return node
    listed = node["_delete_key"]
    names = {name.strip() for name in (listed.split(",") if isinstance(listed, str) else listed)}
    for name in names:
        if name not in node:
            raise ConfigError(f'{below(at, "_delete_key")}: there is no "{name}" here{suggestion(name, node)}')
    return {key: value for key, value in node.items() if key not in names | {"_delete_key"}}


def _remove(tree: Any, path: list[str]) -> None:
    for part in path[:-1]:
        tree = tree.get(part) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(path[-1], None)
