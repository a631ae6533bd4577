"""The command line's grammar: `+a.b=value`, `++a.b=value`, `a.b=value`, `~a.b`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from rollmill.config.secrets import is_secret
from rollmill.config.tree import MISSING, Tree, block, merge
from rollmill.errors import ConfigError, suggestion
from rollmill.model import MASK

_FORM = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=]*)(?P<value>=.*)?", re.DOTALL)
_KEY_PART = re.compile(r"\w[\w@/-]*")
_INTEGER = re.compile(r"[+-]?(0|[1-9](_?\d)*)")
_NUMBER = re.compile(r"[+-]?((\d(_?\d)*)\.(\d(_?\d)*)?|\.\d(_?\d)*|\d(_?\d)*(?=[eE]))([eE][+-]?\d+)?")
_WORDS = {"null": None, "true": True, "false": False}


class Override(Struct, frozen=True):
    """One word of the command line."""

    text: str
    action: Literal["add", "set", "delete"]
    path: tuple[str, ...]
    value: Any = None

    @property
    def key(self) -> str:
        return ".".join(self.path)

    def __str__(self) -> str:
        return _quoted(self.text)


def parse(text: str) -> Override:
    """Read one override. Raises `ConfigError`, which quotes it and says what was expected."""
    form = _FORM.fullmatch(text)
    if form is None or (form["value"] is None) != (form["sign"] == "~"):
        raise ConfigError(f"override {_quoted(text)}: expected key=value, +key=value, ++key=value or ~key")
    path = tuple(re.sub(r"\[(\d+)\]", r".\1", form["key"]).split("."))
    if not all(_KEY_PART.fullmatch(part) for part in path):
        raise ConfigError(f'override {_quoted(text)}: expected a key such as "limit" or "head_server.port" before "="')
    if form["sign"] == "~":
        return Override(text, "delete", path)
    try:
        value = parse_value(form["value"][1:])
    except ValueError as error:
        raise ConfigError(f"override {_quoted(text)}: {error}") from None
    return Override(text, "add" if form["sign"] else "set", path, value)


def parse_value(text: str) -> Any:
    """The value of an override. Raises `ValueError` that says what was expected."""
    text = text.strip()
    if not text.startswith(("[", "{", "'", '"')):
        return _scalar(text)
    reader = _Reader(text)
    value = reader.value(stops="")
    reader.end()
    return value


def apply(tree: Tree, overrides: Iterable[Override], *, known: Collection[str] | None = None) -> Tree:
    """The tree with the overrides in it, in their order.

    `known` names the top-level keys that may be set without a `+` though no file has them. Without it the tree is not
    the whole one yet, and nothing is checked.
    """
    for override in overrides:
        if known is not None and override.action != "add":
            _refuse_absent(tree, override, known)
        deletes = override.action == "delete"
        tree = _without(tree, override.path) if deletes else _with(tree, override.path, override)
    return tree


def _with(node: Any, path: Sequence[str], override: Override) -> Any:
    """`node` with the override's value at `path`."""
    if not path:
        return merge(node, override.value)
    key, rest = path[0], path[1:]
    if isinstance(node, list):
        if not (key.isdecimal() and int(key) < len(node)):
            raise ConfigError(f'override {override}: expected the index of one of {len(node)} items, got "{key}"')
        return [_with(item, rest, override) if index == int(key) else item for index, item in enumerate(node)]
    mapping = {} if node is None or node == MISSING else block(node)
    if mapping is None:
        parent = ".".join(override.path[: len(override.path) - len(path)])
        raise ConfigError(f'override {override}: "{parent}" is not a mapping')
    return mapping | {key: _with(mapping.get(key), rest, override)}


def _without(node: Any, path: Sequence[str]) -> Any:
    key, rest = path[0], path[1:]
    if isinstance(node, list) and key.isdecimal():
        items = ((index == int(key), item) for index, item in enumerate(node))
        return [_without(item, rest) if here else item for here, item in items if rest or not here]
    if not isinstance(node, dict) or key not in node:
        return node
    if rest:
        return node | {key: _without(node[key], rest)}
    return {name: value for name, value in node.items() if name != key}


def _refuse_absent(tree: Tree, override: Override, known: Collection[str]) -> None:
    """Raise `ConfigError` unless there is something to change."""
    if override.action == "set" and override.path[0] in known:
        return
    node: Any = tree
    for depth, key in enumerate(override.path):
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
            continue
        names = block(node) or {}
        if key not in names:
            if override.action == "set" and names.keys() & {"_inherit_from", "_copy"}:
                return  # the block that it builds on may have the key
            near = suggestion(key, {*names, *known} if depth == 0 else names)
            add = "" if override.action == "delete" else f"; +{override.key}=… adds a key"
            raise ConfigError(f'"{".".join(override.path[: depth + 1])}" is not configured{near}{add}')
        node = names[key]


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _quoted(text: str) -> str:
    key, equals, value = text.partition("=")
    return f'"{key}={MASK}"' if equals and value and is_secret(key.rpartition(".")[2]) else f'"{text}"'


class _Reader:
    """Reads quoted strings, lists and mappings from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def value(self, stops: str) -> Any:
        """One value, which in a collection ends before one of `stops`."""
        opening = self._peek()
        if opening == "[":
            return self._list()
        if opening == "{":
            return self._mapping()
        if opening and opening in "'\"":
            return self._quoted_string()
        text = self._bare(stops)
        if not text:
            raise ValueError(f"expected a value at character {self.position + 1} of the value")
        return _scalar(text)

    def end(self) -> None:
        if self._peek():
            raise ValueError(f"expected nothing after character {self.position} of the value; quote it if it is text")

    def _list(self) -> list[Any]:
        items = []
        self.position += 1
        while not self._take("]"):
            items.append(self.value(stops=",]"))
            self._separator("]")
        return items

    def _mapping(self) -> Tree:
        fields: Tree = {}
        self.position += 1
        while not self._take("}"):
            key = self._quoted_string() if self._peek() in ("'", '"') else self._bare(":,}")
            if not self._take(":"):
                raise ValueError(f'expected "key: value" at character {self.position + 1} of the value')
            fields[key] = "" if self._peek() in (",", "}") else self.value(stops=",}")
            self._separator("}")
        return fields

    def _separator(self, closing: str) -> None:
        if self._peek() != closing and not self._take(","):
            raise ValueError(f'expected "," or "{closing}" at character {self.position + 1} of the value')

    def _quoted_string(self) -> str:
        quote = self.text[self.position]
        match = re.compile(rf"{quote}((?:\\{quote}|[^{quote}])*){quote}", re.DOTALL).match(self.text, self.position)
        if match is None:
            raise ValueError(f"expected a closing {quote} at the end of the value")
        self.position = match.end()
        return match[1].replace(f"\\{quote}", quote)

    def _bare(self, stops: str) -> str:
        """Text up to one of `stops`, wherever that is not inside an interpolation."""
        start, depth = self.position, 0
        while self.position < len(self.text):
            if self.text.startswith("${", self.position):
                depth += 1
            elif depth and self.text[self.position] == "}":
                depth -= 1
            elif not depth and self.text[self.position] in stops:
                break
            self.position += 1
        return self.text[start : self.position].strip()

    def _peek(self) -> str:
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1
        return self.text[self.position : self.position + 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self.position += 1
        return True
