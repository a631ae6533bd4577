"""Azure OpenAI: its addresses, its header, its version, how much at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from rollmill.config import convert
from rollmill.errors import ConfigError
from rollmill.model import Conversation, Secret
from rollmill.models.azure_openai import Fields, make
from rollmill.types import user

Serve = Callable[..., Awaitable[Any]]
ANSWER: dict[str, Any] = {"output": []}


def fields(url: str | list[str], **more: Any) -> Fields:
    return Fields(url, Secret("az-1"), "my-deployment", **more)


@pytest.mark.parametrize("path", ["", "/", "/openai", "/openai/", "/openai/v1", "/openai/v1/"])
async def test_the_address_of_a_resource_is_enough(serve: Serve, path: str) -> None:
    server = await serve(ANSWER)
    async with make(fields(server.url.removesuffix("/v1") + path)) as model:
        await model.reply(Conversation((user("hi"),)))
    assert server.heard[0].path == "/openai/v1/responses"


async def test_asks_with_azures_header_and_version(serve: Serve) -> None:
    server = await serve(ANSWER)
    options = {"default_query": {"api-version": "preview"}, "extra_body": {"truncation": "auto"}}
    async with make(fields(server.url, **options)) as model:
        await model.reply(Conversation((user("hi"),)))
    (heard,) = server.heard
    assert heard.query == {"api-version": "preview"}
    assert heard.headers["api-key"] == "az-1"
    assert "Authorization" not in heard.headers
    assert heard.json["model"] == "my-deployment"
    assert heard.json["truncation"] == "auto"


async def test_several_resources_share_the_calls(serve: Serve) -> None:
    together = asyncio.Barrier(2)

    async def answer(request: web.Request) -> web.Response:
        await together.wait()
        return web.json_response(ANSWER)

    servers = [await serve(answer) for _ in range(2)]
    async with make(fields([server.url for server in servers])) as model:
        await asyncio.gather(*(model.reply(Conversation((user("hi"),))) for _ in range(2)))
    assert [len(server.heard) for server in servers] == [1, 1]


async def test_the_key_is_not_in_a_refusal(serve: Serve) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": "401", "message": "bad key az-1"}}, status=401)

    server = await serve(refuse)
    async with make(fields(server.url)) as model:
        with pytest.raises(ConfigError, match="refuses the key") as caught:
            await model.check()
    assert "az-1" not in str(caught.value)


def test_how_much_runs_at_once_is_the_configurations() -> None:
    url = "https://resource.openai.azure.com"
    assert make(fields(url)).places is None
    assert make(fields(url, num_concurrent_requests=16)).places == 16


def test_the_configuration_is_nemo_gyms() -> None:
    given = {
        "openai_base_url": "https://resource.openai.azure.com/openai/v1/",
        "openai_api_key": "az-1",
        "openai_model": "my-deployment",
        "default_query": {"api-version": "preview"},
        "num_concurrent_requests": 8,
    }
    model = make(convert(given, Fields))
    assert (model.name, model.places) == ("my-deployment", 8)
