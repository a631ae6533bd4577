"""A method's signature is a tool's JSON schema; a call has its arguments checked before the method sees them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from rollmill.errors import ContractError, ToolError
from rollmill.types import encode

_MARK = "__rollmill_tool__"


_Method = TypeVar("_Method", bound=Callable[..., Any])


def tool(method: _Method) -> _Method:
    """Offer a method of an environment to the model: its name, its docstring, and its arguments with their types.

    The model's arguments arrive checked; what the method returns becomes the tool's output, as text or as JSON.
    """
    setattr(method, _MARK, True)
    return method


def is_tool(attribute: object) -> bool:
    return hasattr(attribute, _MARK)


class Tool:
    """One tool: what the model is told of it, and how its arguments are read."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.name = method.__name__
        self.method = method
        self.description = inspect.cleandoc(method.__doc__ or "")
        try:
            arguments = _arguments(method)
            self._decoder = msgspec.json.Decoder(arguments)
            self._parameters = _inline(msgspec.json.schema(arguments))
        except (TypeError, NameError) as error:
            problem = str(error).splitlines()[-1]
            raise ContractError(f"tool {method.__qualname__}: its arguments have no JSON schema: {problem}") from error

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The tool as the Responses API wants it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self._parameters,
            "strict": False,
        }

    def read(self, arguments: str) -> dict[str, Any]:
        """The checked arguments of one call. Raises `ToolError`, whose message names the field, for the model."""
        try:
            return msgspec.structs.asdict(self._decoder.decode(arguments or "{}"))
        except msgspec.ValidationError as error:
            raise ToolError(f"Invalid tool call arguments: {error}") from None
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ToolError(f"Invalid tool call arguments: not JSON: {error}") from None


def not_json(arguments: str) -> None:
    """Raise `ToolError` for arguments that no tool can read; whether they are the right ones its own schema says."""
    try:
        msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ToolError(f"Invalid tool call arguments: not JSON: {error}") from None


def output_text(value: object) -> str:
    """What a tool returned, as the model reads it."""
    return value if isinstance(value, str) else encode(value).decode()


def _arguments(method: Callable[..., Any]) -> type[Struct]:
    hints = typing.get_type_hints(method, include_extras=True)
    fields: list[Any] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ContractError(f"tool {method.__qualname__}: `{parameter}` has no place in a JSON schema; name it")
        if parameter.name not in hints:
            raise ContractError(f"tool {method.__qualname__}: give the argument `{parameter.name}` a type")
        field = (parameter.name, hints[parameter.name])
        fields.append(field if parameter.default is parameter.empty else (*field, _default(parameter.default)))
    return msgspec.defstruct(method.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: Any) -> Any:
    # msgspec refuses a shared mutable default; a factory gives each call its own.
    return msgspec.field(default_factory=lambda: deepcopy(value)) if isinstance(value, list | dict | set) else value


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its outermost reference resolved: providers want an object at the top."""
    definitions = schema.get("$defs", {})
    top = dict(definitions.pop(schema["$ref"].rsplit("/", 1)[1])) if "$ref" in schema else dict(schema)
    top.pop("title", None)
    return top | ({"$defs": definitions} if definitions else {})
