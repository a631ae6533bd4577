"""Prompts from templates: what the model is asked is filled in from a row's own fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from msgspec import Raw, Struct

from rollmill.config import convert, read_verbatim
from rollmill.data.rollouts import read_as, read_fields
from rollmill.errors import ConfigError, suggestion
from rollmill.store.schema import one_line
from rollmill.types import decode, encode

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class _Templates(Struct, frozen=True):
    """What a file of templates holds."""

    user: str
    system: str | None = None


class Prompt(Struct, frozen=True, dict=True):
    """Templates with `{field}` in them; `{{` and `}}` stand for braces."""

    path: Path
    templates: _Templates

    @cached_property
    def hash(self) -> bytes:
        """Another one asks something else."""
        return blake2b(encode(self.templates), digest_size=16).digest()

    def render(self, content: bytes, place: str) -> bytes:
        """A row with its prompt; every other field keeps its bytes. Raises `ConfigError` that begins with `place`."""
        return one_line(encode(self.rendered(read_fields(content, place), place)))

    def rendered(self, fields: Mapping[str, Raw], place: str) -> dict[str, Raw]:
        given = fields.get("responses_create_params", Raw(b"{}"))
        params = read_as(given, dict[str, Raw], f"{place}: responses_create_params")
        if "input" in params and decode(params["input"]):
            raise ConfigError(f"{place}: it has responses_create_params.input already, which {self.path} would replace")
        templates = {"system": self.templates.system, "user": self.templates.user}
        messages = [
            {"role": role, "content": "".join(_filled(template, fields, f"{place}: {self.path}, {role}"))}
            for role, template in templates.items()
            if template is not None
        ]
        params["input"] = Raw(encode(messages))
        return {**fields, "responses_create_params": Raw(encode(params))}


def load_prompt(path: Path) -> Prompt:
    """Raises `ConfigError`, also where braces do not match."""
    tree = read_verbatim(path)
    if "user" not in tree:
        raise ConfigError(f"{path}: it has no `user`, the template of what the model is asked; `system` is optional")
    templates = convert(tree, _Templates, str(path))
    for role, template in (("system", templates.system), ("user", templates.user)):
        _refuse_single_braces(template or "", f"{path}, {role}")
    return Prompt(path, templates)


def _refuse_single_braces(template: str, place: str) -> None:
    for token in _TOKEN.finditer(template):
        if token[0] in ("{", "}"):
            around = template[max(0, token.start() - 10) : token.end() + 10]
            raise ConfigError(
                f"{place}: a single {token[0]} in {around!r}: write {{field}} for a field of the row, "
                f"and {2 * token[0]} for the brace itself"
            )


def _filled(template: str, fields: Mapping[str, Raw], place: str) -> Iterator[str]:
    end = 0
    for token in _TOKEN.finditer(template):
        yield template[end : token.start()]
        yield token[0][0] if token[1] is None else _value(token[1], fields, place)
        end = token.end()
    yield template[end:]


def _value(name: str, fields: Mapping[str, Raw], place: str) -> str:
    """Text as it is, anything else as Python prints it."""
    if name not in fields:
        near = suggestion(name, fields) or f"; it has {', '.join(fields)}"
        raise ConfigError(f'{place} asks for the field "{name}", which the row does not have{near}')
    return str(decode(fields[name]))
