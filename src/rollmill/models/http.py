"""The way to a model behind HTTP: replicas, deadlines for each phase of a call, and every fault by its class."""

from __future__ import annotations

import asyncio
import email.utils
import math
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from rollmill.errors import ConfigError, ModelError, ModelFault
from rollmill.net.connection import Answer, BrokenError, CallDeadlines, LateError, UnfitError, WireError
from rollmill.net.pool import Origin
from rollmill.net.wire import Wire, wire

CHECK_S = 4.0
MAX_BODY = 64 * 2**20
# What reading JSON that somebody else wrote can raise.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_REMEMBERED = 65_536
_LONGEST_REST_S = 30.0
_HEARD = 64 * 2**10


class ContextOverflowError(Exception):
    """The conversation no longer fits the model. An ending, not a fault: backends turn it into a reply."""


class Replica:
    """One base URL and how much is going on there."""

    def __init__(self, url: str) -> None:
        try:
            Origin.of(url)
        except ValueError:
            raise ConfigError(f"model URL {url!r}: expected http://HOST:PORT/v1 or https://HOST/v1") from None
        self.url = url.rstrip("/")
        self.root = self.url.removesuffix("/v1")
        self.running = 0
        self._faults = 0
        self._rests_until = 0.0

    @property
    def rests(self) -> bool:
        return time.monotonic() < self._rests_until

    def answered(self) -> None:
        self._faults = 0

    def failed(self) -> None:
        """It could not be reached: let it rest, a while longer each time, or its idleness would attract everything."""
        self._faults += 1
        self._rests_until = time.monotonic() + min(_LONGEST_REST_S, 0.5 * 2**self._faults)


class HttpClient:
    """Posts JSON to the least loaded of its replicas; a conversation stays where it began, while it can be reached."""

    def __init__(
        self,
        base_url: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        secret: str = "",
        deadlines: CallDeadlines = CallDeadlines(),
    ) -> None:
        urls = [base_url] if isinstance(base_url, str) else list(base_url)
        if not urls:
            raise ConfigError("a model needs at least one base URL")
        self.replicas = [Replica(url) for url in urls]
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        for name, value in self._headers.items():
            if not _HEADER.fullmatch(name):
                raise ConfigError(f"{name!r} cannot be the name of a header")
            if not value.isprintable():
                raise ConfigError(f"the header {name} holds a line break or the like: look at the end of the key")
        self._query = dict(query or {})
        self._secret = secret
        self._deadlines = deadlines
        self._homes: OrderedDict[str, Replica] = OrderedDict()
        self._wire: Wire | None = None

    async def __aenter__(self) -> Self:
        self._wire = await wire(self._headers, self._query, self._deadlines, MAX_BODY).__aenter__()
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._wire is not None:
            wire, self._wire = self._wire, None
            await wire.__aexit__(*error)

    def move(self, url: str) -> None:
        """The server is elsewhere: a port that was chosen when it started."""
        self.replicas = [Replica(url)]

    async def post(
        self, path: str, body: bytes, *, conversation: str = "", root: bool = False, lines: bytes = b""
    ) -> bytes:
        """The body of a 200. `root` posts beside the `/v1` of the base URL; `lines` are headers of this request."""
        replica = self._home(conversation)
        replica.running += 1
        try:
            answer = await self._post((replica.root if root else replica.url) + path, body, lines)
        except ModelError as error:
            if error.failure.kind == "transport":
                replica.failed()
            raise
        finally:
            replica.running -= 1
        replica.answered()
        return answer

    async def check(self, hint: str) -> None:
        """Raise `ConfigError` within five seconds if no replica can be reached, or if one refuses the key."""
        if self._wire is None:
            async with self:
                await self.check(hint)
            return
        faults = await asyncio.gather(*(self._fault(replica) for replica in self.replicas))
        refused = [fault for fault, final in faults if final]
        if refused or all(fault for fault, _ in faults):
            raise ConfigError(f"{(refused or [fault for fault, _ in faults])[0]}; {hint}")

    async def _fault(self, replica: Replica) -> tuple[str, bool]:
        """What is wrong with a replica, or nothing; and whether waiting could not mend it."""
        try:
            async with asyncio.timeout(CHECK_S):
                answer = await self._open.get(f"{replica.url}/models")
        except (TimeoutError, LateError):
            return f"the model at {replica.url} did not answer in {CHECK_S:g} s", False
        except BrokenError as error:
            return f"the model at {replica.url} cannot be reached ({error})", False
        except UnfitError:
            return "", False
        if answer.status in (401, 403):
            return f"the model at {replica.url} refuses the key ({answer.status}: {self._said(answer.body)})", True
        # A server without /models is still a server: only a call can tell.
        return "", False

    def _home(self, conversation: str) -> Replica:
        if len(self.replicas) == 1:
            return self.replicas[0]
        home = self._homes.get(conversation) if conversation else None
        if home is None or home.rests:
            awake = [replica for replica in self.replicas if not replica.rests] or self.replicas
            home = min(awake, key=lambda replica: replica.running)
            if conversation:
                self._homes[conversation] = home
                if len(self._homes) > _REMEMBERED:
                    self._homes.popitem(last=False)
        return home

    @property
    def _open(self) -> Wire:
        if self._wire is None:
            raise ConfigError("the model is not open: enter it first (`async with model:`)")
        return self._wire

    async def _post(self, url: str, body: bytes, lines: bytes) -> bytes:
        try:
            answer = await self._open.post(url, body, lines)
        except LateError as error:
            raise ModelError("timeout", f"{url}: {error}") from None
        except UnfitError as error:
            raise ModelError("malformed", f"{url} {error}") from None
        except WireError as error:
            raise ModelError("transport", f"{url}: {error}") from None
        if answer.status == 200:
            return answer.body
        raise self._refusal(answer, url)

    def _refusal(self, answer: Answer, url: str) -> Exception:
        said = self._said(answer.body)
        detail = f"{url} answered {answer.status}: {said}"
        if answer.status in (400, 413, 422) and _OVERFLOW.search(said):
            return ContextOverflowError(detail)
        fault: ModelFault
        match answer.status:
            case 429:
                fault = "denied" if "insufficient_quota" in said else "rate_limit"
            case 401 | 403 | 404:
                fault = "denied"
            case 408 | 504 | 524:
                fault = "timeout"
            case status:
                fault = "overload" if status >= 500 else "caller"
        return ModelError(fault, detail, retry_after_s=retry_after(answer))

    def _said(self, content: bytes) -> str:
        """The server's own words about an error, in one line, without our key in them."""
        text = content[:_HEARD].decode("utf-8", "replace")
        try:
            error = msgspec.json.decode(content, type=dict[str, Any]).get("error", {})
            text = " ".join(str(error[key]) for key in ("message", "code") if error.get(key)) if error else text
        except (*UNREADABLE, AttributeError, TypeError):
            pass
        # Before anything is cut off: half a key is half a secret. Within JSON it may look otherwise.
        for form in (self._secret, msgspec.json.encode(self._secret)[1:-1].decode()):
            text = text.replace(form, "***") if form else text
        return " ".join(text[:2000].split())[:400] or "no message"


class HttpModel:
    """What the backends behind HTTP have in common: a name, a client, and its life."""

    def __init__(self, name: str, client: HttpClient) -> None:
        self.name = name
        self.places: int | None = None
        self._client = client

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__(*error)

    async def check(self) -> None:
        await self._client.check("start it, or correct policy_base_url and policy_api_key")


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|exceeds? the (available )?context|context window"
    r"|maximum model length|max_model_len|prompt is too long|reduce the length",
    re.IGNORECASE,
)


def retry_after(answer: Answer) -> float | None:
    """Seconds to wait, from `retry-after-ms` or from `Retry-After` as seconds or a date."""
    milliseconds = _number(answer.header("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = answer.header("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None
