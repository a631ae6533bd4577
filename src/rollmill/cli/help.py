"""The help of a command's options, from the options themselves."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator

import msgspec
from msgspec import Struct


def option_lines(options: type[Struct]) -> Iterator[str]:
    """Each option with its default and the sentence under it."""
    sentences = described(options)
    for field in msgspec.structs.fields(options):
        default = "required" if field.required else f"default {_plain(field)}"
        yield f"  +{field.encode_name}  ({default})"
        yield from textwrap.wrap(sentences[field.name], 100, initial_indent="      ", subsequent_indent="      ")


def described(options: type[Struct]) -> dict[str, str]:
    """The sentence that stands under each field in the source, also of what it builds on."""
    inherited: dict[str, str] = {}
    for base in options.__bases__:
        if base is not Struct and issubclass(base, Struct):
            inherited |= described(base)
    tree = ast.parse(textwrap.dedent(inspect.getsource(options))).body[0]
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    found = inherited
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = inspect.cleandoc(str(ast.literal_eval(text.value)))
    return found


def _plain(field: msgspec.structs.FieldInfo) -> str:
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return msgspec.json.encode(value).decode()
