"""The model that flags name, as an instance of a configuration."""

from __future__ import annotations

import os
from typing import Any

from rollmill.config import Instance
from rollmill.errors import ConfigError, suggestion


def policy_model(model: str | None, base_urls: list[str] | None, key_variable: str) -> Instance | None:
    """The model that the flags name, as an instance of a configuration."""
    if model is None:
        if base_urls:
            raise ConfigError(
                "--base-url needs --model: openai:NAME for the Responses API, vllm:NAME for chat completions"
            )
        return None
    backend, colon, name = model.partition(":")
    fields: dict[str, Any] = {"model": name} if name else {}
    if model.endswith(".gguf"):
        backend, fields = "embedded", {"model": model}
    elif backend == "replay":
        fields = {"path": name}
    elif backend == "scripted":
        fields = {"lines": [name]} if colon else {}
    elif backend in ("openai", "azure_openai", "vllm"):
        fields = _remote_fields(backend, name, base_urls, os.environ.get(key_variable, ""))
    elif backend != "embedded":
        known = ("embedded", "openai", "vllm", "azure_openai", "replay", "scripted")
        raise ConfigError(f"unknown model {model!r}{suggestion(backend, known)}; known: {', '.join(known)}")
    return Instance(name="policy_model", kind="responses_api_models", implementation=f"{backend}_model", fields=fields)


def _remote_fields(backend: str, name: str, base_urls: list[str] | None, key: str) -> dict[str, Any]:
    if not name:
        raise ConfigError(f"--model {backend} needs the model's name: --model {backend}:NAME")
    urls = base_urls or (["https://api.openai.com/v1"] if backend == "openai" else None)
    if urls is None:
        raise ConfigError(f"--model {backend}:{name} needs --base-url")
    prefix = "" if backend == "vllm" else "openai_"
    return {f"{prefix}base_url": urls, f"{prefix}api_key": key, f"{prefix}model": name}
