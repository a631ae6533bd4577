"""Requests for a session that another process of the same service holds: they are passed on to it."""

from __future__ import annotations

from collections.abc import Mapping

from rollmill.net.connection import LateError, WireError
from rollmill.serve import wire
from rollmill.serve.client import Client
from rollmill.serve.http import JSON, Answer, Handler, Problem, Request
from rollmill.serve.sessions import SESSION_ENDED

_PASSED_ON = ("cookie", wire.CALL, wire.COUNTS)
_PASSED_BACK = ("set-cookie", "retry-after", wire.ENDED, wire.OURS[0])


class Relay:
    """Knows the other processes by what the ids of their sessions begin with."""

    def __init__(self, siblings: Mapping[str, Client]) -> None:
        self._siblings = dict(siblings)

    def around(self, handler: Handler, cookie: str) -> Handler:
        """A handler that answers itself what is its own."""

        async def answer(request: Request) -> Answer:
            sibling = self._siblings.get(place_of(request.cookie(cookie)))
            return await (handler(request) if sibling is None else _passed_on(sibling, request))

        return answer if self._siblings else handler


def place_of(id: str) -> str:
    place, dot, _ = id.partition(".")
    return place + dot


async def _passed_on(sibling: Client, request: Request) -> Answer:
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    try:
        answer = await sibling.post(request.path, request.body, headers)
    except LateError as error:
        raise Problem(504, "late", f"the process that holds this session: {error}") from None
    except WireError:
        # It has died, and its sessions with it.
        raise Problem(410, SESSION_ENDED, "this session has ended: post a task to /seed_session") from None
    back = tuple((name, answer.header(name)) for name in _PASSED_BACK if name.encode() in answer.headers)
    return Answer(answer.body, answer.status, answer.header("content-type") or JSON, back)
