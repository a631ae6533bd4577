"""Requests through the proxies that the process's environment names, by aiohttp; past them, by our own transport."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from rollmill.errors import ConfigError
from rollmill.net.connection import Answer, BrokenError, CallDeadlines, LateError, UnfitError, reason
from rollmill.net.pool import Origin
from rollmill.net.transport import Transport


class Proxied:
    """The same as `Transport`, for servers that are reached through a proxy and for those that are not."""

    def __init__(
        self,
        proxies: Mapping[str, str],
        headers: Mapping[str, str],
        query: Mapping[str, str],
        limits: CallDeadlines,
        max_body: int,
        *,
        once: bool = False,
    ) -> None:
        for scheme in ("http", "https", "all"):
            _check(scheme, proxies.get(scheme, ""))
        self._proxies, self._headers, self._query = proxies, dict(headers), dict(query)
        self._limits, self._max_body = limits, max_body
        self._chosen: dict[str, str] = {}
        # What takes the proxy is sent once in any case: aiohttp sends no POST again.
        self._direct = Transport(headers, query, limits, max_body, once=once)

    async def __aenter__(self) -> Self:
        await self._direct.__aenter__()
        self._session = aiohttp.ClientSession(
            # aiohttp's own context is as old as its import.
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context()),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s),
            headers=self._headers,
            skip_auto_headers=("Accept-Encoding",),
        )
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._direct.__aexit__(*error)
        await self._session.close()

    async def post(self, url: str, body: bytes, lines: bytes = b"") -> Answer:
        proxy = self._proxy(url)
        return await (self._ask("POST", url, proxy, body, lines) if proxy else self._direct.post(url, body, lines))

    async def get(self, url: str) -> Answer:
        proxy = self._proxy(url)
        return await (self._ask("GET", url, proxy) if proxy else self._direct.get(url))

    def _proxy(self, url: str) -> str:
        """The proxy for a URL; nothing where there is none."""
        if url not in self._chosen:
            origin = Origin.of(url)
            # A proxy's loopback is not ours.
            past = origin.loopback or urllib.request.proxy_bypass(f"{origin.host}:{origin.port}")
            proxy = self._proxies.get("https" if origin.tls else "http") or self._proxies.get("all", "")
            self._chosen[url] = "" if past else _with_scheme(proxy)
        return self._chosen[url]

    async def _ask(self, method: str, url: str, proxy: str, body: bytes | None = None, lines: bytes = b"") -> Answer:
        limits, loop = self._limits, asyncio.get_running_loop()
        end = loop.time() + limits.total_s
        waiting_for = "the first byte"
        try:
            async with asyncio.timeout_at(min(end, loop.time() + limits.connect_s + limits.first_byte_s)) as limit:
                async with self._session.request(
                    method,
                    url,
                    data=body,
                    params=self._query,
                    headers=dict(line.partition(": ")[::2] for line in lines.decode().splitlines()),
                    allow_redirects=False,
                    proxy=proxy,
                ) as answer:
                    waiting_for = "the rest of the answer"
                    content = bytearray()
                    while not answer.content.at_eof():
                        limit.reschedule(min(end, loop.time() + limits.idle_s))
                        content += await answer.content.readany()
                        if len(content) > self._max_body:
                            raise UnfitError(f"answered more than {self._max_body >> 20} MiB")
                    headers = {name.lower().encode(): value.encode() for name, value in answer.headers.items()}
                    if "Set-Cookie" in answer.headers:
                        headers[b"set-cookie"] = "\n".join(answer.headers.getall("Set-Cookie")).encode()
                    return Answer(answer.status, headers, bytes(content))
        except aiohttp.ServerTimeoutError:
            text = f"no connection through the proxy {_shown(proxy)} in {limits.connect_s:g} s"
            raise LateError(text, reached=False) from None
        except TimeoutError:
            raise LateError(f"gave up waiting for {waiting_for}, through the proxy {_shown(proxy)}") from None
        except (aiohttp.ClientError, OSError) as error:
            reached = not isinstance(error, aiohttp.ClientConnectorError)
            raise BrokenError(f"{_reason(error)}, through the proxy {_shown(proxy)}", reached=reached) from None


def _check(scheme: str, proxy: str) -> None:
    if proxy and urlsplit(_with_scheme(proxy)).scheme not in ("http", "https"):
        raise ConfigError(
            f"the environment's {scheme.upper()}_PROXY names {_shown(proxy)}: only proxies of http:// and https:// can "
            "be used; unset it, or name the model's host in NO_PROXY"
        )


def _with_scheme(proxy: str) -> str:
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _shown(proxy: str) -> str:
    """A proxy without its password."""
    parts = urlsplit(_with_scheme(proxy))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return reason(error.os_error)
    return reason(error)
