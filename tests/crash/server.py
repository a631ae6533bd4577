"""A scripted model server as a process of its own: OpenAI's Responses API, as faulty as its script says.

The first line of its standard input is the script, every further line another one; it ends with the input, so that it
never outlives whoever started it. It prints its port, and logs every request to the file that its argument names.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import os
import re
import socket
import struct
import sys
import time
from collections import Counter
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw
from tests.crash.rows import secret
from tests.crash.script import Asked, Fault, Script

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_NUMBER = re.compile(rb"Errand (\d+)")
_HUGE = 100 * 2**20


class _Item(msgspec.Struct):
    type: str = "message"
    output: str = ""


class _Request(msgspec.Struct):
    input: list[Raw]
    model: str = ""


_request = msgspec.json.Decoder(_Request)
_item = msgspec.json.Decoder(_Item)


class Server:
    """All connections, what they were answered, and when the port is closed."""

    def __init__(self, script: Script, log: FileIO) -> None:
        self.script = script
        self._log = log
        self._came: Counter[bytes] = Counter()
        self.connections: set[Connection] = set()
        self._listening: asyncio.Server | None = None
        self._opening: asyncio.Future[None] | None = None
        self.port = 0
        self._first_at: float | None = None
        self._allowance = 0.0
        self._allowed_at = time.monotonic()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: Connection(self), "127.0.0.1", self.port, backlog=4096)
        self.port = self._listening.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for connection in list(self.connections):
            connection.reset()

    def becomes(self, script: Script) -> None:
        self.script = script
        self._plan_absences()

    def judge(self, key: bytes, number: int, turn: int) -> tuple[Fault | None, float]:
        """What this request gets, and after how long; it is in the log from here on."""
        if self._first_at is None:
            self._first_at = time.monotonic()
            self._plan_absences()
        nth = 1
        if self.script.faults or self.script.first:
            self._came[key] += 1
            nth = self._came[key]
        fault: Fault | None = "429-seconds" if self._too_many() else self.script.fault(key, nth)
        wait = self.script.retry_after_s if fault in ("429-seconds", "429-date") else 0.0
        asked = Asked(time.monotonic(), key.hex(), nth, number, turn, fault or "200", wait)
        self._log.write(msgspec.json.encode(asked) + b"\n")
        return fault, self.script.straggler_s if fault == "straggler" else self.script.latency(key, nth)

    def _too_many(self) -> bool:
        if not self.script.rate:
            return False
        now = time.monotonic()
        grown = self._allowance + (now - self._allowed_at) * self.script.rate
        self._allowance, self._allowed_at = min(grown, max(1.0, self.script.rate / 10)), now
        if self._allowance < 1:
            return True
        self._allowance -= 1
        return False

    def _plan_absences(self) -> None:
        if self._first_at is None:
            return
        loop = asyncio.get_running_loop()
        passed = time.monotonic() - self._first_at
        for begin, end in self.script.away:
            loop.call_later(begin - passed, self.close)
            loop.call_later(end - passed, self._come_back)

    def _come_back(self) -> None:
        self._opening = asyncio.ensure_future(self.open())


class Connection(asyncio.Protocol):
    """One client: requests are answered one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._busy = False
        self._transport: Any = None
        self._flooding: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._next()

    def reset(self) -> None:
        """Go without a goodbye: the client reads a reset, not an end."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _next(self) -> None:
        if self._buffer.startswith(b"\x16"):
            # TLS is not spoken here.
            self.reset()
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(self._buffer) < end + 4 + size:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + size])
        del self._buffer[: end + 4 + size]
        self._busy = True
        if head.startswith(b"GET"):
            self._send(200, b'{"object":"list","data":[{"id":"mock","object":"model"}]}')
        else:
            self._hear(body)

    def _hear(self, body: bytes) -> None:
        key = hashlib.blake2b(body, digest_size=8).digest()
        request = _request.decode(body)
        found = _NUMBER.search(bytes(request.input[0]))
        number = int(found[1]) if found else -1
        last = _item.decode(request.input[-1])
        turn = sum(b'"function_call_output"' in bytes(item) for item in request.input)
        fault, wait = self._server.judge(key, number, turn)
        said = self._said(number, turn, last, fault, key)
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._answer, fault, said)
        else:
            self._answer(fault, said)

    def _said(self, number: int, turn: int, last: _Item, fault: Fault | None, key: bytes) -> bytes:
        """The answer that is right here, but for faults of its content."""
        if fault == "schema":
            return b'{"id":"resp","output":5}'
        looked = last.type == "function_call_output" and not last.output.startswith("{")
        if fault == "empty":
            item = None
        elif looked or self._server.script.turns == 1:
            item = _message(last.output if looked else f"{number}: {secret(number)}")
        else:
            arguments = '{"number": ' if fault == "arguments" else f'{{"number": {number}}}'
            item = {"type": "function_call", "name": "look", "arguments": arguments, "call_id": f"call_{number}_{turn}"}
        response = {
            "id": f"resp_{key.hex()}",
            "object": "response",
            "model": "mock",
            "output": [item] if item else [],
            "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        }
        return msgspec.json.encode(response)

    def _answer(self, fault: Fault | None, said: bytes) -> None:
        if self._transport is None:
            return
        match fault:
            case None | "empty" | "arguments" | "straggler" | "schema":
                self._send(200, said)
            case "malformed":
                self._send(200, b"<html>busy</html>")
            case "nan":
                self._send(200, said.replace(b'"input_tokens":10', b'"input_tokens":NaN'))
            case "surrogate":
                self._send(200, said.replace(b'"model":"mock"', rb'"model":"mock \ud800"'))
            case "truncated":
                self._begin(200, len(said) + 100, said)
                self._transport.close()
            case "reset":
                self.reset()
            case "silent":
                pass
            case "stall":
                self._begin(200, len(said))
            case "trickle":
                self._begin(200, len(said))
                self._trickle(said)
            case "huge":
                self._begin(200, _HUGE)
                self._flooding = asyncio.ensure_future(self._flood())
            case _:
                self._refuse(fault)

    def _refuse(self, fault: Fault) -> None:
        status = int(fault[:3])
        seconds = self._server.script.retry_after_s
        extra = b""
        if fault == "429-seconds":
            extra = b"Retry-After: %g\r\n" % seconds
        elif fault == "429-date":
            # A date has whole seconds: the first at which the wait is surely over.
            date = email.utils.formatdate(int(time.time() + seconds + 0.999), usegmt=True)
            extra = b"Retry-After: %b\r\n" % date.encode()
        self._send(status, b'{"error":{"message":"scripted %d"}}' % status, extra)

    def _begin(self, status: int, length: int, content: bytes = b"", extra: bytes = b"") -> None:
        head = b"HTTP/1.1 %d .\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
        self._transport.write(head % (status, extra, length) + content)

    def _send(self, status: int, content: bytes, extra: bytes = b"") -> None:
        self._begin(status, len(content), content, extra)
        self._busy = False
        if self._buffer:
            self._next()

    def _trickle(self, rest: bytes) -> None:
        if self._transport is not None and rest:
            self._transport.write(rest[:1])
            asyncio.get_running_loop().call_later(1.0, self._trickle, rest[1:])

    async def _flood(self) -> None:
        for _ in range(_HUGE >> 16):
            if self._transport is None:
                return
            self._transport.write(b" " * (1 << 16))
            while self._transport is not None and self._transport.get_write_buffer_size() > 1 << 20:
                await asyncio.sleep(0.01)


async def serve(log: FileIO) -> None:
    loop = asyncio.get_running_loop()
    scripts = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(scripts), sys.stdin)
    server = Server(_script(await scripts.readline()), log)
    await server.open()
    print(server.port, flush=True)
    while line := await scripts.readline():
        server.becomes(_script(line))
    os._exit(0)


def _script(line: bytes) -> Script:
    return msgspec.json.decode(line, type=Script)


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}


def main() -> None:
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with Path(sys.argv[1]).open("ab", buffering=0) as log, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(log))


if __name__ == "__main__":
    main()
