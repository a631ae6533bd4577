"""What a service hears and says: requests, answers, and problems with a status."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from rollmill.types import encode

T = TypeVar("T")

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"

# What services put into their cookies; nothing else is taken from one, and none is sent back.
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NOT_OF_COOKIES = re.compile(r"[^A-Za-z0-9_.-]")


class Request(Struct, frozen=True):
    """A request, whole. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    place: Mapping[str, str] = {}
    """What stands in the path where a route has a name in braces."""

    def cookie(self, name: str) -> str:
        # By hand: the standard library gives up at the first cookie that it does not like, which may be anybody's.
        pairs = (pair.strip().partition("=") for pair in self.headers.get("cookie", "").split(";"))
        return next((value for key, _, value in pairs if key == name and _ID.fullmatch(value)), "")

    def read(self, kind: type[T]) -> T:
        """The body as a `kind`. Raises `Problem`."""
        return read(self.body, kind)


def cookie_name(kind: type, name: str) -> str:
    """NeMo Gym's name for the cookie of a service, without what a cookie cannot hold."""
    return _NOT_OF_COOKIES.sub("-", f"{kind.__name__}___{name}")


def set_cookie(name: str, id: str) -> tuple[str, str]:
    return "Set-Cookie", f"{name}={id}; Path=/; HttpOnly; SameSite=Lax"


class Answer(Struct, frozen=True):
    """What a service answers: a body, or lines that come one after the other."""

    body: bytes = b"{}"
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncIterator[bytes] | None = None


def json(value: Any, status: int = 200) -> Answer:
    return Answer(encode(value), status)


class Problem(Exception):  # noqa: N818
    """What the client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        more: Mapping[str, Any] | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.more = dict(more or {})
        self.headers = tuple(headers)

    def answer(self) -> Answer:
        # As OpenAI's API says what is wrong, so that its clients can show it.
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return Answer(encode({"error": error, **self.more}), self.status, headers=self.headers)


Handler = Callable[[Request], Awaitable[Answer]]


def read(body: bytes, kind: type[T]) -> T:
    """JSON that a client sent, as a `kind`. Raises `Problem`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "not_json", f"the body is no JSON: {error}") from None


def invalid(message: str) -> Problem:
    return Problem(422, "invalid", message)
