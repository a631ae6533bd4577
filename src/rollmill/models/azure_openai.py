"""A model behind Azure OpenAI: the Responses API of a resource, with Azure's header and version."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from rollmill.model import Secret
from rollmill.models.openai import OpenAI
from rollmill.net.connection import CallDeadlines


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    openai_base_url: str | list[str]
    openai_api_key: Secret
    openai_model: str
    default_query: dict[str, str] = {}
    num_concurrent_requests: int | None = None
    extra_body: dict[str, Any] = {}
    deadlines: CallDeadlines = CallDeadlines()


def make(fields: Fields) -> OpenAI:
    urls = [fields.openai_base_url] if isinstance(fields.openai_base_url, str) else fields.openai_base_url
    model = OpenAI(
        fields.openai_model,
        [_endpoint(url) for url in urls],
        fields.openai_api_key.reveal(),
        headers={"api-key": fields.openai_api_key.reveal()},
        query=fields.default_query,
        extra_body=fields.extra_body,
        deadlines=fields.deadlines,
    )
    model.places = fields.num_concurrent_requests
    return model


def _endpoint(url: str) -> str:
    """A resource's address is enough: its API lies at /openai/v1."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else f"{url.removesuffix('/openai')}/openai/v1"
