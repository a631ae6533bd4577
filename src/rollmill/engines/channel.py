"""Messages over a socket: each with its length before it, many to a write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rollmill.engines.messages import encode

_LENGTH = 4


class Channel(asyncio.Protocol):
    """Hands every message that arrives to `heard`, and the end of the connection to `lost`."""

    def __init__(self, heard: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._heard, self._lost = heard, lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._arrived = bytearray()
        self._leaving: list[bytes] = []

    def send(self, message: Any) -> None:
        """What is sent in one turn of the event loop leaves in one write."""
        body = encode(message)
        if not self._leaving:
            self._loop.call_soon(self.flush)
        self._leaving += (len(body).to_bytes(_LENGTH, "big"), body)

    def flush(self) -> None:
        leaving, self._leaving = self._leaving, []
        if leaving and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(leaving))

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it without waiting for a reader."""
        if self._transport is not None:
            self._transport.abort()

    # As a protocol of asyncio's.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        arrived += data
        start, size = 0, len(arrived)
        while size - start >= _LENGTH:
            end = start + _LENGTH + int.from_bytes(arrived[start : start + _LENGTH], "big")
            if end > size:
                break
            self._heard(bytes(arrived[start + _LENGTH : end]))
            start = end
        del arrived[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lost()
