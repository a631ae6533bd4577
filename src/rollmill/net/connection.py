"""One connection of HTTP/1.1, as far as calling a model needs it: where an answer ends, how long it may take and be."""

from __future__ import annotations

import asyncio
import os
import select
import ssl
import zlib
from typing import cast

import httptools
from msgspec import Struct

MAX_HEAD = 64 * 2**10
"""How many bytes may come in a row that are no body: headers, interim answers, trailers."""


class CallDeadlines(Struct, frozen=True, forbid_unknown_fields=True):
    """How long each phase of one model call may take."""

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    total_s: float = 1800.0


class Answer(Struct, frozen=True):
    """What a server answered. Header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def header(self, name: str) -> str:
        return self.headers.get(name.encode(), b"").decode("latin-1")


class WireError(Exception):
    """A call that got no answer. Unless it was `reached`, the server has never seen it."""

    def __init__(self, text: str, *, reached: bool = True) -> None:
        super().__init__(text)
        self.reached = reached


class BrokenError(WireError):
    """There was no connection, it ended too early, or what came is no HTTP."""


class StaleError(BrokenError):
    """The server closed a connection that had rested before it took the request: it can be sent again."""


class LateError(WireError):
    """A deadline was over."""


class UnfitError(WireError):
    """An answer that came whole, or would have, and is nothing that can be read. The text follows "the server"."""


class Connection(asyncio.Protocol):
    """A connection to a server: one request at a time, and used again while every answer ends where it should."""

    __slots__ = (
        *("idle_since", "lost", "open", "_alarm", "_answered", "_begin_by", "_begun", "_body", "_due"),
        *("_end", "_headers", "_interim", "_keeps", "_limits", "_loop", "_max_body", "_overhead", "_parser", "_status"),
        *("_silent", "_tick", "_transport", "_until_close", "_waiting"),
    )

    _body: bytes | bytearray
    _headers: dict[bytes, bytes]

    def __init__(self, limits: CallDeadlines, max_body: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.open = False
        self.idle_since = 0.0
        self._limits, self._max_body = limits, max_body
        # No deadline that a byte sets ends earlier than this, so one alarm that comes round this often misses none.
        self._tick = min(limits.first_byte_s, limits.idle_s, limits.total_s)
        self._alarm: asyncio.TimerHandle | None = None
        self._begin_by = self._due = self._end = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._answered = False
        self._keeps = False
        self._silent = True
        self._forget()

    def ask(self, request: bytes, end: float) -> asyncio.Future[Answer]:
        """Send a request, whole. Who no longer waits for the answer closes the connection."""
        if self._transport is None or not self.open:
            raise StaleError("the connection is closed", reached=False)
        now = self._loop.time()
        self._end = end
        self._begin_by = self._due = min(end, now + self._limits.first_byte_s)
        self._silent, self._keeps = True, False
        self._waiting = self._loop.create_future()
        if self._alarm is None:
            self._set_alarm(now)
        self._transport.write(request)
        return self._waiting

    @property
    def reusable(self) -> bool:
        return self.open and self._keeps

    @property
    def quiet(self) -> bool:
        """Whether nothing has come from the server that the event loop has not seen yet, such as its closing."""
        if self._transport is None:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Drop the connection, whatever is going on there."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            # Nobody asked. What it is cannot be told from the beginning of the next answer.
            self.close()
            return
        self._silent = False
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, WireError) else BrokenError(f"no HTTP answer: {error}"))
            return
        if self._waiting is None:
            return
        if self._overhead > MAX_HEAD:
            self._fail(UnfitError(f"answered with more than {MAX_HEAD >> 10} KiB of headers"))
        elif self._begun:
            self._due = min(self._end, self._loop.time() + self._limits.idle_s)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        # The parser holds this object, too: together they would wait for the garbage collector.
        del self._parser
        if not self.lost.done():
            self.lost.set_result(None)
        if self._waiting is None:
            return
        if self._until_close and error is None:
            self._finish()
        elif self._silent and self._answered:
            self._fail(StaleError("the server closed the connection", reached=False))
        else:
            self._fail(BrokenError(reason(error) if error else f"the server closed the connection {self._place}"))

    # What the parser tells.

    def on_message_begin(self) -> None:
        if self._waiting is None:
            # More bytes than the answer has: where the next one would begin is anybody's guess.
            self.close()
        self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status == 0:
            name = name.lower()
            if name == b"set-cookie" and name in self._headers:
                # The one header that may come several times and cannot be joined by commas.
                value = self._headers[name] + b"\n" + value
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        if status < 200:
            self._interim = True
            return
        self._status = status
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise UnfitError(f"answered in a transfer encoding that is not known here: {coding!r}")
        length = headers.get(b"content-length")
        if length is not None and status not in (204, 304) and int(length) > self._max_body:
            raise self._too_long()
        self._until_close = coding is None and length is None and status not in (204, 304)

    def on_body(self, piece: bytes) -> None:
        self._overhead = 0
        # Most bodies come in one piece, which is kept as it is.
        if not self._body:
            self._body = piece
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += piece
        if len(self._body) > self._max_body:
            raise self._too_long()

    def on_message_complete(self) -> None:
        if self._interim:
            self._forget_interim()
            return
        if self._waiting is not None and self._transport is not None:
            # An answer that came before the whole request was sent leaves the rest of it in the way.
            self._keeps = self._parser.should_keep_alive() and not self._transport.get_write_buffer_size()
            self._finish()

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, None
        answer = Answer(self._status, self._headers, bytes(self._body))
        self._forget()
        self._answered = True
        if waiting is None or waiting.done():
            return
        if b"content-encoding" not in answer.headers:
            waiting.set_result(answer)
            return
        try:
            waiting.set_result(_unpacked(answer, self._max_body))
        except WireError as error:
            waiting.set_exception(error)

    def _fail(self, error: WireError) -> None:
        waiting, self._waiting = self._waiting, None
        self.close()
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _forget(self) -> None:
        self._status = 0
        self._headers = {}
        self._body = b""
        self._overhead = 0
        self._begun = self._interim = self._until_close = False

    def _forget_interim(self) -> None:
        self._headers = {}
        self._begun = self._interim = False
        self._due = self._begin_by

    def _too_long(self) -> UnfitError:
        return UnfitError(f"answered more than {self._max_body >> 20} MiB")

    @property
    def _place(self) -> str:
        return "in the middle of its answer" if self._begun else "without an answer"

    # One alarm a connection, not one a request: it looks at what is due, and comes again.

    def _set_alarm(self, now: float) -> None:
        self._alarm = self._loop.call_at(min(self._due, now + self._tick), self._look)

    def _look(self) -> None:
        self._alarm = None
        if self._waiting is None:
            return
        now = self._loop.time()
        # Loops count in milliseconds: an alarm may ring a little early.
        if now >= self._due - 0.001:
            what = "the rest of the answer" if self._begun else "the first byte"
            self._fail(LateError(f"gave up waiting for {what}"))
        else:
            self._set_alarm(now)


def _unpacked(answer: Answer, max_body: int) -> Answer:
    """An answer whose server packed it without being asked to."""
    coding = answer.header("content-encoding").strip().lower()
    match coding:
        case "" | "identity":
            return answer
        case "gzip" | "x-gzip":
            body = _inflated(answer.body, zlib.MAX_WBITS | 16, max_body)
        case "deflate":
            # Its name means zlib's format; some servers send what is inside of that.
            zlibs = answer.body[:1] and answer.body[0] & 0x0F == zlib.DEFLATED
            body = _inflated(answer.body, zlib.MAX_WBITS if zlibs else -zlib.MAX_WBITS, max_body)
        case _:
            raise UnfitError(f"answered in an encoding that is not known here: {coding!r}")
    return Answer(answer.status, answer.headers, body)


def _inflated(packed: bytes, window: int, max_body: int) -> bytes:
    if not packed:
        return b""
    inflater = zlib.decompressobj(window)
    try:
        body = inflater.decompress(packed, max_body + 1)
    except zlib.error as error:
        raise BrokenError(f"the answer cannot be unpacked: {error}") from None
    if len(body) > max_body:
        raise UnfitError(f"answered more than {max_body >> 20} MiB")
    if not inflater.eof or inflater.unused_data:
        raise BrokenError("the answer cannot be unpacked: it does not end where it should")
    return body


def reason(error: BaseException) -> str:
    """Why there is no connection: the system's words, or OpenSSL's."""
    # A fault of TLS has a number too, but of OpenSSL's.
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error) or type(error).__name__
