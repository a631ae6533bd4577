"""A signature becomes a schema, and a call is checked against it before the method sees it."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest

import rollmill as rm
from rollmill.tools import Tool, output_text


class Address(msgspec.Struct):
    street: str
    number: int = 1


class Node(msgspec.Struct):
    value: int
    children: "list[Node]" = []


def parameters(method: Callable[..., Any]) -> dict[str, Any]:
    return Tool(method).schema["parameters"]


def test_a_schema_is_what_the_responses_api_wants() -> None:
    class Shelf:
        def take(self, item: str, count: int = 1) -> str:
            """Move an item.

            From the shelf to the cart.
            """
            return item * count

    assert Tool(Shelf.take).schema == {
        "type": "function",
        "name": "take",
        "description": "Move an item.\n\nFrom the shelf to the cart.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer", "default": 1}},
            "required": ["item"],
            "additionalProperties": False,
        },
        "strict": False,
    }


def test_a_tool_without_arguments_has_an_empty_object() -> None:
    def look(self: Any) -> str:
        return ""

    assert parameters(look) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert Tool(look).schema["description"] == ""


def test_many_kinds_of_arguments_have_a_schema() -> None:
    def order(
        self: Any,
        *,
        size: Literal["small", "large"],
        count: Annotated[int, msgspec.Meta(ge=1, le=9)],
        tags: list[str],
        note: str | None = None,
        ratio: float = 0.5,
        prices: dict[str, float] = {},  # noqa: B006
        anything: Any = None,
    ) -> None: ...

    shown = parameters(order)
    assert shown["required"] == ["size", "count", "tags"]
    assert shown["properties"] == {
        "size": {"enum": ["large", "small"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "ratio": {"type": "number", "default": 0.5},
        "prices": {"type": "object", "additionalProperties": {"type": "number"}},
        "anything": {"default": None},
    }


def test_a_record_is_a_definition_of_the_schema() -> None:
    def send(self: Any, to: Address, copies: list[Address] = []) -> None: ...  # noqa: B006

    shown = parameters(send)
    assert shown["properties"]["to"] == {"$ref": "#/$defs/Address"}
    assert shown["$defs"]["Address"]["required"] == ["street"]


def test_a_record_may_hold_its_own_kind() -> None:
    def plant(self: Any, tree: Node) -> None: ...

    shown = parameters(plant)
    assert shown["type"] == "object"
    assert shown["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    read = Tool(plant).read('{"tree": {"value": 1, "children": [{"value": 2}]}}')
    assert read["tree"] == Node(1, [Node(2)])


def test_annotations_may_be_strings() -> None:
    def send(self: Any, to: "Address", count: "int" = 1) -> "str": ...

    assert parameters(send)["properties"]["count"] == {"type": "integer", "default": 1}
    assert Tool(send).read('{"to": {"street": "Mill Lane"}}') == {"to": Address("Mill Lane"), "count": 1}


def test_a_keyword_only_argument_is_an_argument() -> None:
    def take(self: Any, *, item: str) -> str:
        return item

    assert Tool(take).read('{"item": "tea"}') == {"item": "tea"}


def untyped(self, item):  # type: ignore[no-untyped-def]
    ...


def starred(self: Any, *items: str) -> None: ...


def double_starred(self: Any, **items: str) -> None: ...


def positional(self: Any, item: str, /) -> None: ...


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (untyped, "tool untyped: give the argument `item` a type"),
        (starred, r"tool starred: `\*items: str` has no place in a JSON schema"),
        (double_starred, r"tool double_starred: `\*\*items: str` has no place"),
        (positional, "tool positional: `item: str` has no place"),
    ],
)
def test_a_signature_that_has_no_schema_is_refused(method: Callable[..., Any], what: str) -> None:
    with pytest.raises(rm.ContractError, match=what):
        Tool(method)


class Socket:
    """Something that is no JSON."""


def wired(self: Any, socket: Socket) -> None: ...


def torn(self: Any, items: list[int] | set[int]) -> None: ...


@pytest.mark.parametrize("method", [wired, torn])
def test_an_argument_that_is_no_json_is_refused_with_the_tool_s_name(method: Callable[..., Any]) -> None:
    with pytest.raises(rm.ContractError, match=f"tool {method.__name__}: "):
        _ = Tool(method).schema


def take(
    self: Any,
    item: str,
    count: Annotated[int, msgspec.Meta(ge=1)] = 1,
    to: Address | None = None,
    anything: Any = None,
) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ('{"item": 3}', r"Expected `str`, got `int` - at `\$.item`"),
        ('{"item": "tea", "count": "two"}', r"Expected `int`, got `str` - at `\$.count`"),
        ('{"item": "tea", "count": 0}', r"Expected `int` >= 1 - at `\$.count`"),
        ('{"item": "tea", "to": {}}', r"missing required field `street` - at `\$.to`"),
        ('{"item": "tea", "colour": "red"}', "unknown field `colour`"),
        ("{}", "missing required field `item`"),
        ("", "missing required field `item`"),
        ("[]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ("item=tea", "not JSON: "),
        ('{"item": "tea"', "not JSON: "),
        ('{"item": "tea"} and more', "not JSON: "),
        ('{"item": "\\ud800"}', "not JSON: "),
        ('{"item": "\ud800"}', "not JSON: "),
        ('{"item": "tea", "anything": ' + "[" * 100_000, "not JSON: "),
    ],
    ids=lambda text: text[:40].encode("ascii", "replace").decode(),
)
def test_wrong_arguments_are_a_message_that_names_the_field(arguments: str, what: str) -> None:
    with pytest.raises(rm.ToolError, match=f"^Invalid tool call arguments: .*{what}"):
        Tool(take).read(arguments)


def test_defaults_fill_what_a_call_leaves_out() -> None:
    assert Tool(take).read('{"item": "tea"}') == {"item": "tea", "count": 1, "to": None, "anything": None}


def test_a_tool_without_arguments_may_be_called_with_an_empty_text() -> None:
    def look(self: Any, at: str = "shelf") -> str:
        return at

    assert Tool(look).read("") == {"at": "shelf"}


def test_each_call_has_defaults_of_its_own() -> None:
    def pack(self: Any, boxes: list[list[str]] = [["empty"]], sizes: dict[str, int] = {}) -> None:  # noqa: B006
        ...

    tool = Tool(pack)
    first = tool.read("{}")
    first["boxes"][0].append("tea")
    first["sizes"]["tea"] = 1
    assert tool.read("{}") == {"boxes": [["empty"]], "sizes": {}}


def test_an_output_is_text_or_json() -> None:
    assert output_text("plain") == "plain"
    assert json.loads(output_text({"cart": ["tea"], "total": 1.5})) == {"cart": ["tea"], "total": 1.5}
    assert json.loads(output_text(Address("Mill Lane"))) == {"street": "Mill Lane", "number": 1}
    assert output_text(None) == "null"
    assert output_text(True) == "true"
