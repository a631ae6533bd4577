"""The description of every kind of service: a correct page, whose references lead somewhere."""

import json
from typing import Any, Literal

import msgspec
import pytest
import schemathesis
from tests.places.worlds import Riddle, Store
from tests.serve.conftest import ask, environment_service

import rollmill as rm
from rollmill.model import Secret
from rollmill.rollout import play
from rollmill.serve.agent import AgentService, Player
from rollmill.serve.app import App
from rollmill.serve.guard import Guard
from rollmill.serve.model import ModelService
from rollmill.serve.openapi import Operation, described


class Step(msgspec.Struct, tag=True):
    to: Literal["north", "south"]


class Jump(msgspec.Struct, tag=True):
    over: list[Step] = []


class Map(rm.Task):
    route: list[Step]
    start: tuple[int, int] = (0, 0)


class Walker(rm.Environment[Map]):
    """Its tool takes structures within structures."""

    @rm.tool
    def walk(self, moves: list[Step | Jump]) -> str:
        """Go somewhere."""
        return f"{len(moves)} moves"

    @rm.tool
    def tool(self, step: Step) -> str:
        """Go one step, by a name that a route has, too."""
        return step.to


class Odd:
    """Nothing that a schema can say."""


class Opaque(rm.Task):
    secret: Odd | None = None


async def page(app: App, **options: Any) -> dict[str, Any]:
    answer = await ask(app, "GET", "/openapi.json", **options)
    assert answer.status == 200
    schemathesis.openapi.from_dict(answer.json).validate()
    lost = [ref for ref in references(answer.json) if not found(answer.json, ref)]
    assert not lost
    return answer.json


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [ref for one in node for ref in references(one)]
    if not isinstance(node, dict):
        return []
    here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return here + [ref for one in node.values() for ref in references(one)]


def found(page: dict[str, Any], reference: str) -> bool:
    node: Any = page
    for word in reference.removeprefix("#/").split("/"):
        node = node.get(word) if isinstance(node, dict) else None
    return node is not None


async def test_an_environment():
    async with environment_service(Store) as service:
        paths = (await page(service.app))["paths"]
    assert paths.keys() >= {"/", "/seed_session", "/verify", "/close", "/aggregate_metrics", "/take", "/{tool}"}
    take = paths["/take"]["post"]
    assert take["summary"] == "Move an item from the shelf to the cart."
    assert take["requestBody"]["content"]["application/json"]["schema"]["required"] == ["item"]
    assert take["responses"].keys() >= {"200", "400", "409", "410", "413", "421", "422", "500", "504"}
    assert "requestBody" not in paths["/close"]["post"]


async def test_definitions_of_tools_and_of_rows_are_where_references_find_them():
    async with environment_service(Walker) as service:
        told = await page(service.app)
    schemas = told["components"]["schemas"]
    assert schemas["post_walk_Jump"]["properties"]["over"]["items"] == {"$ref": "#/components/schemas/post_walk_Step"}
    assert schemas["post_seed_session_Map"]["required"] == ["route", "responses_create_params"]
    assert "$defs" not in json.dumps(told)
    names = [one["operationId"] for methods in told["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


async def test_rows_of_types_that_no_schema_can_say():
    class Hidden(rm.Environment[Opaque]):
        pass

    async with environment_service(Hidden) as service:
        body = (await page(service.app))["paths"]["/seed_session"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/post_seed_session_Task"}


async def test_a_model():
    paths = (await page(ModelService("policy_model", rm.Scripted()).app))["paths"]
    assert paths.keys() >= {"/v1/responses", "/v1/chat/completions", "/v1/models"}
    answered = paths["/v1/responses"]["post"]["responses"]["200"]["content"]
    assert answered.keys() == {"application/json", "text/event-stream"}


async def test_an_agent():
    async def plays(task: rm.Task) -> rm.Rollout:
        return await play(task, rm.Environment, rm.ToolAgent(), rm.Scripted())

    service = AgentService("a", Player(Riddle, lambda _: None, plays, plays), lambda rows: {})
    told = await page(service.app)
    assert told["paths"].keys() >= {"/run", "/v1/responses", "/aggregate_metrics"}
    assert told["components"]["schemas"]["post_run_Riddle"]["required"] == ["answer", "responses_create_params"]


async def test_a_service_with_a_token_says_that_it_wants_one():
    app = ModelService("m", rm.Scripted(), guard=Guard("0.0.0.0", Secret("token-of-tests"))).app
    told = await page(app, headers=[("Authorization", "Bearer token-of-tests")])
    assert told["security"] == [{"token": []}]
    assert "401" in told["paths"]["/v1/responses"]["post"]["responses"]
    assert "security" not in await page(ModelService("m", rm.Scripted(), guard=Guard(token=Secret(""))).app)


@pytest.mark.parametrize("path", ["/a-b.c/{name}", "/ü", "/"])
def test_every_operation_has_an_id_that_is_a_word(path):
    told = described("t", [("GET", path, Operation("x"))], token=False)
    assert told["paths"][path]["get"]["operationId"].isidentifier()
