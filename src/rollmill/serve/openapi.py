"""What a service offers, as OpenAPI 3.1 describes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

import rollmill

ANY_OBJECT: dict[str, Any] = {"type": "object"}

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "code": {"type": "string"}},
        }
    },
}

_SAID = {
    400: "no JSON, or what the component refuses",
    401: "no token, or a wrong one",
    403: "a page of another site asks",
    404: "nothing is there",
    408: "the body came too slowly",
    409: "there is no session",
    410: "the session has ended",
    413: "the body is too large",
    421: "the service is not called so",
    422: "a field is missing or wrong",
    429: "the model's rate is used up",
    500: "a fault of the service, or of the component",
    502: "the model failed",
    503: "the service is full, or the model is away",
    504: "a deadline was over",
}
_NO_WORD = re.compile(r"[^A-Za-z0-9_]")
_ALWAYS = (403, 421)
_WITH_BODY = (400, 408, 413, 422)


class Operation(Struct, frozen=True):
    """What a route does, takes and gives, in words and JSON schemas."""

    summary: str
    body: Mapping[str, Any] | None = None
    """The schema of the request's body; None where it has none."""
    answer: Mapping[str, Any] = {}
    problems: tuple[int, ...] = ()
    """With which statuses it may answer beside those that every route has."""
    content_types: tuple[str, ...] = ("application/json",)
    refusal: Mapping[str, Any] | None = None
    """What it answers with 422, where that is not what every route does."""


def described(title: str, routes: Iterable[tuple[str, str, Operation]], *, token: bool) -> dict[str, Any]:
    """The description of a service."""
    paths: dict[str, dict[str, Any]] = {}
    components: dict[str, Any] = {"schemas": {}}
    page: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": rollmill.__version__},
        "paths": paths,
        "components": components,
    }
    for method, path, operation in routes:
        found = _operation(method, path, operation, token=token)
        paths.setdefault(path, {})[method.lower()] = _hoisted(found, found["operationId"], components["schemas"])
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"token": []}]
    return page


_DEFINITION = "#/$defs/"


def _hoisted(node: Any, prefix: str, schemas: dict[str, Any]) -> Any:
    """A part of the page whose schemas' own definitions stand where the page's references find them."""
    if isinstance(node, list | tuple):
        return [_hoisted(one, prefix, schemas) for one in node]
    if isinstance(node, str) and node.startswith(_DEFINITION):
        return f"#/components/schemas/{prefix}_{node.removeprefix(_DEFINITION)}"
    if not isinstance(node, Mapping):
        return node
    for name, definition in node.get("$defs", {}).items():
        schemas[f"{prefix}_{name}"] = _hoisted(definition, prefix, schemas)
    return {key: _hoisted(value, prefix, schemas) for key, value in node.items() if key != "$defs"}


def _operation(method: str, path: str, operation: Operation, *, token: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": operation.summary, "operationId": _id(method, path)}
    problems = {*_ALWAYS, 500, *operation.problems} | ({401} if token else set())
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": operation.body}}}
        problems |= {*_WITH_BODY}
    last = path.rpartition("/")[2]
    if last.startswith("{"):
        schema = {"type": "string", "minLength": 1}
        found["parameters"] = [{"name": last.strip("{}"), "in": "path", "required": True, "schema": schema}]
    answers = {kind: {"schema": operation.answer} if "json" in kind else {} for kind in operation.content_types}
    found["responses"] = {"200": {"description": "done", "content": answers}} | {
        str(status): _problem(_SAID[status], (operation.refusal if status == 422 else None) or ERROR)
        for status in sorted(problems)
    }
    return found


def _problem(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _id(method: str, path: str) -> str:
    words = [word.replace("{", "any_").strip("}") for word in path.split("/") if word]
    return _NO_WORD.sub("_", "_".join([method.lower(), *words]))
