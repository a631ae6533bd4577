"""Who may speak to a service: the hosts by which it is called, and a token where it is not on loopback."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from rollmill.errors import ConfigError
from rollmill.model import Secret
from rollmill.serve.http import Problem

_LOOPBACK_NAMES = {"localhost", "ip6-localhost"}


class Guard(Struct, frozen=True):
    """Checks every request before anything is done for it."""

    host: str = "127.0.0.1"
    """Where the service listens."""
    token: Secret | None = None
    names: tuple[str, ...] = ()
    """By what else it may be called, where nobody has to show a token."""

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            raise ConfigError(
                f"host {self.host} can be reached from other machines, so it needs a token: set access_token (in "
                "env.yaml, for example as ${oc.env:ROLLMILL_TOKEN}), or listen on 127.0.0.1"
            )
        if self.token and not self.token.reveal().isprintable():
            raise ConfigError("access_token holds a line break or the like: look at its end")

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises `Problem` for who may not."""
        if self.token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            is_it = hmac.compare_digest(given.strip().encode("latin-1"), self.token.reveal().encode())
            if scheme.lower() != "bearer" or not is_it:
                refused = (("WWW-Authenticate", "Bearer"),)
                raise Problem(401, "no_token", "this service wants `Authorization: Bearer TOKEN`", headers=refused)
            return
        # A page in somebody's browser can send requests to loopback, under a name that its own server gave us.
        called = _host(headers.get("host", ""))
        if not self._is_ours(called):
            raise Problem(421, "wrong_host", f"this service is not called {called!r}: use {self.host}")
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(_host(origin.partition("://")[2])):
            raise Problem(403, "wrong_origin", f"a page of {origin!r} may not use this service")

    def _is_ours(self, name: str) -> bool:
        return name in map(str.lower, (self.host, *self.names)) or is_loopback(name)


def is_loopback(host: str) -> bool:
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(header: str) -> str:
    """The name in a Host header, in lower case and without its port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
