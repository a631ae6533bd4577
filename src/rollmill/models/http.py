"""The way to a model behind HTTP: replicas, deadlines for each phase of a call, and every fault by its class."""

from __future__ import annotations

import asyncio
import email.utils
import math
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from rollmill.errors import ConfigError, ModelError, ModelFault, describe

CHECK_S = 4.0
MAX_BODY = 64 * 2**20
# What reading JSON that somebody else wrote can raise.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_REMEMBERED = 65_536
_LONGEST_REST_S = 30.0


class CallDeadlines(Struct, frozen=True, forbid_unknown_fields=True):
    """How long each phase of one model call may take."""

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    total_s: float = 1800.0


class ContextOverflowError(Exception):
    """The conversation no longer fits the model. An ending, not a fault: backends turn it into a reply."""


class Replica:
    """One base URL and how much is going on there."""

    def __init__(self, url: str) -> None:
        if not _is_http(url):
            raise ConfigError(f"model URL {url!r}: expected http://HOST:PORT/v1 or https://HOST/v1")
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
            if not value.isprintable():
                raise ConfigError(f"the header {name} holds a line break or the like: look at the end of the key")
        self._query = dict(query or {})
        self._secret = secret
        self._deadlines = deadlines
        self._homes: OrderedDict[str, Replica] = OrderedDict()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # The collector bounds how much runs at once; a second bound here would only hide where rollouts wait.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._deadlines.connect_s),
            headers=self._headers,
            auto_decompress=True,
        )
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def move(self, url: str) -> None:
        """The server is elsewhere: a port that was chosen when it started."""
        self.replicas = [Replica(url)]

    async def post(self, path: str, body: bytes, *, conversation: str = "", root: bool = False) -> bytes:
        """The body of a 200. `root` posts beside the `/v1` of the base URL instead of below it."""
        replica = self._home(conversation)
        replica.running += 1
        try:
            answer = await self._post((replica.root if root else replica.url) + path, body)
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
        if self._session is None:
            async with self:
                await self.check(hint)
            return
        faults = await asyncio.gather(*(self._fault(replica) for replica in self.replicas))
        refused = [fault for fault, final in faults if final]
        if refused or all(fault for fault, _ in faults):
            raise ConfigError(f"{(refused or [fault for fault, _ in faults])[0]}; {hint}")

    async def _fault(self, replica: Replica) -> tuple[str, bool]:
        """What is wrong with a replica, or nothing; and whether waiting could not mend it."""
        url = f"{replica.url}/models"
        try:
            async with asyncio.timeout(CHECK_S):
                async with self._open.get(url, params=self._query, allow_redirects=False) as answer:
                    if answer.status in (401, 403):
                        said = self._said(await answer.content.read(2000))
                        return f"the model at {replica.url} refuses the key ({answer.status}: {said})", True
        except TimeoutError:
            return f"the model at {replica.url} did not answer in {CHECK_S:g} s", False
        except aiohttp.ClientError as error:
            return f"the model at {replica.url} cannot be reached ({_reason(error)})", False
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
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise ConfigError("the model is not open: enter it first (`async with model:`)")
        return self._session

    async def _post(self, url: str, body: bytes) -> bytes:
        limits, loop = self._deadlines, asyncio.get_running_loop()
        end = loop.time() + limits.total_s
        waiting_for = "the first byte"
        try:
            async with asyncio.timeout_at(min(end, loop.time() + limits.connect_s + limits.first_byte_s)) as limit:
                async with self._open.post(url, data=body, params=self._query, allow_redirects=False) as answer:
                    waiting_for = "the rest of the answer"
                    chunks: list[bytes] = []
                    size = 0
                    while True:
                        limit.reschedule(min(end, loop.time() + limits.idle_s))
                        chunk = await answer.content.readany()
                        if not chunk:
                            break
                        chunks.append(chunk)
                        size += len(chunk)
                        if size > MAX_BODY:
                            raise ModelError("malformed", f"{url} answered more than {MAX_BODY >> 20} MiB")
                    content = b"".join(chunks)
                    if answer.status == 200:
                        return content
                    raise self._refusal(answer, url, content)
        except TimeoutError as error:
            if isinstance(error, aiohttp.ServerTimeoutError):
                raise ModelError("timeout", f"{url}: no connection in {limits.connect_s:g} s") from None
            raise ModelError("timeout", f"{url}: gave up waiting for {waiting_for}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ModelError("transport", f"{url}: {_reason(error)}") from None

    def _refusal(self, answer: aiohttp.ClientResponse, url: str, content: bytes) -> Exception:
        said = self._said(content)
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
        return ModelError(fault, detail, retry_after_s=retry_after(answer.headers))

    def _said(self, content: bytes) -> str:
        """The server's own words about an error, in one line, without our key in them."""
        text = content[:2000].decode("utf-8", "replace")
        try:
            error = msgspec.json.decode(content, type=dict[str, Any]).get("error", {})
            text = " ".join(str(error[key]) for key in ("message", "code") if error.get(key)) if error else text
        except (*UNREADABLE, AttributeError, TypeError):
            pass
        text = text.replace(self._secret, "***") if self._secret else text
        return " ".join(text.split())[:400] or "no message"


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


_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|exceeds? the (available )?context|context window"
    r"|maximum model length|max_model_len|prompt is too long|reduce the length",
    re.IGNORECASE,
)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or from `Retry-After` as seconds or a date."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("Retry-After", "")
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


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # A port that is none is refused when it is read.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _reason(error: BaseException) -> str:
    # A fault of TLS has a number too, but of OpenSSL's.
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else str(error.os_error)
    return str(error) or describe(error)
