"""What must not be printed or stored: how it is recognised, and how it is masked."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from rollmill.model import MASK, Secret

_WORDS = {"secret", "secrets", "password", "passwd", "passphrase", "authorization", "credential", "credentials"}
_API_KEYS = {"apikey", "apikeys", "api key", "api keys"}
_OTHER_KEYS = {f"{word} key" for word in ("access", "private", "secret", "auth", "subscription", "account", "signing")}
_OF_VOCABULARY = {"bos", "cls", "end", "eos", "mask", "pad", "sep", "special", "start", "stop", "unk"}
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
_QUOTED = re.compile(r"""["'\\]""")
_SCHEME = re.compile(r"(Bearer|Basic|Token)\s+", re.IGNORECASE)
# A shorter secret is found inside too many innocent words.
_SHORTEST = 6


def is_secret(key: str) -> bool:
    """Whether a key is called like a secret: `policy_api_key`, `hf_token`; not `max_output_tokens`, `eos_token`."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", key).lower())
    last, pair = words[-1:], " ".join(words[-2:])
    if last == ["token"]:
        return not _OF_VOCABULARY.intersection(words)
    return bool(_WORDS.intersection(last) or _API_KEYS.intersection([*last, pair]) or pair in _OTHER_KEYS)


def secret_values(node: Any, *, secret: bool = False) -> Iterator[str]:
    """Every value under a key that is called like a secret."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from secret_values(value, secret=secret or is_secret(key))
    elif isinstance(node, list):
        for item in node:
            yield from secret_values(item, secret=secret)
    elif secret and node is not None and not isinstance(node, bool) and node != "":
        text = node.reveal() if isinstance(node, Secret) else str(node)
        yield text
        if scheme := _SCHEME.match(text):
            yield text[scheme.end() :]


def mask(node: Any, secrets: Collection[str], *, secret: bool = False) -> Any:
    """A copy without secrets: neither under their own keys, nor inside other text."""
    if isinstance(node, Mapping):
        return {key: mask(value, secrets, secret=secret or is_secret(key)) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [mask(item, secrets, secret=secret) for item in node]
    if node is None or isinstance(node, bool) or node == "":
        return node
    if secret or isinstance(node, Secret):
        return MASK
    return mask_text(node, secrets) if isinstance(node, str) else node


def mask_text(text: str, secrets: Collection[str]) -> str:
    # The longest first: one secret may be a part of another.
    for value in sorted({form for one in secrets for form in _forms(one)}, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, MASK)
    return _LOGIN_IN_URL.sub(MASK, text)


def _forms(secret: str) -> tuple[str, ...]:
    """A secret as it is, and as JSON and Python write it within quotes."""
    if secret.isascii() and secret.isprintable() and not _QUOTED.search(secret):
        return (secret,)
    inside = (msgspec.json.encode(secret).decode(), json.dumps(secret), repr(secret))
    return (secret, *(form[1:-1] for form in inside))
