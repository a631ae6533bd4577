"""The services that run already: a head server that answers, and what it says of them."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from rollmill.collection.options import Head
from rollmill.config import convert, peek
from rollmill.errors import ConfigError
from rollmill.model import Secret

_ANSWER_S = 3.0


class Running(Struct, frozen=True):
    """A system that runs: its instances without secrets, and where each of them is."""

    head: str
    tree: dict[str, Any]
    addresses: dict[str, str]


class Service(Struct):
    """A service as a head server lists it."""

    name: str
    url: str
    server_type: str = ""
    pid: int | None = None
    state: str = "ready"


class AbsentError(Exception):
    """No head server answers; the text says why, and where it was looked for."""


def running_services(words: Sequence[str]) -> Running:
    """What the head server tells that the words or `env.yaml` name. Raises `AbsentError` and `ConfigError`."""
    head, token = _head(words)
    services = _asked(head, "/server_instances", list[Service], token)
    tree = yaml.safe_load(_asked(head, "/global_config_dict_yaml", str, token))
    if not isinstance(tree, dict):
        raise ConfigError(f"what answers at {head} is no head server: its configuration is no mapping")
    addresses = {service.name: service.url for service in services}
    # What else it was told, a folder for profiles for example, was told to it alone.
    return Running(head, {name: tree[name] for name in addresses if name in tree}, addresses)


def services_of(words: Sequence[str]) -> list[Service]:
    """The same, of the services alone."""
    head, token = _head(words)
    found: list[Service] = _asked(head, "/server_instances", list[Service], token)
    return found


def _head(words: Sequence[str]) -> tuple[str, Secret | None]:
    found = peek(words, ("head_server", "access_token"))
    given = found.get("access_token")
    head = convert(found.get("head_server") or {}, Head, "head_server")
    return head.url, Secret(str(given)) if given else None


def _asked(head: str, path: str, kind: Any, token: Secret | None) -> Any:
    request = urllib.request.Request(head + path, headers=_headers(token))  # noqa: S310 - of http alone
    # A proxy's loopback is not ours.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except urllib.error.HTTPError as error:
        why = "wants another access_token" if error.code == 401 else f"answers {error.code}"
        raise ConfigError(f"the head server at {head} {why}") from None
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or str(reason)
        raise AbsentError(f"no head server answers at {head} ({why})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, HTTPException):
        raise ConfigError(f"what answers at {head} is no head server; name it: +head_server.port=…") from None


def _headers(token: Secret | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.reveal()}"} if token else {}
