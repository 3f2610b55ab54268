"""HTTP/1.1 for the stand-in: an asyncio.Protocol that parses requests and writes answers, and knows no route.

Answers look like uvicorn's. A request is handed to the application when its body is complete; the application answers
at once or keeps the `Exchange` and writes later. A client that leaves is reported to the exchange's `on_abort`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import parse_qs

import httptools
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_WAITING_REQUESTS = 64

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CHUNK_SIZES = [b"%x\r\n" % size for size in range(2048)]


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    size = len(data)
    return (_CHUNK_SIZES[size] if size < len(_CHUNK_SIZES) else b"%x\r\n" % size) + data + b"\r\n"


LAST_CHUNK = b"0\r\n\r\n"


class Application(Protocol):
    """What answers requests."""

    def handle(self, exchange: Exchange) -> None:
        """Answers the exchange, now or later."""

    def connected(self, connection: Connection) -> None:
        """A client connected."""

    def disconnected(self, connection: Connection) -> None:
        """A client's connection ended."""


class _Clock:
    """The `date` header, formatted once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\nserver: uvicorn\r\n".encode()
        return self._line


class Exchange:
    """One request and its answer."""

    __slots__ = ("_connection", "body", "extra_headers", "headers", "method", "on_abort", "path", "query", "status")

    def __init__(
        self, connection: Connection, method: str, target: bytes, headers: dict[str, str], body: bytes
    ) -> None:
        self._connection = connection
        self.method = method
        path, _, query = target.partition(b"?")
        self.path = path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.headers = headers
        """names in lower case; of a repeated header the last value"""
        self.body = body
        self.on_abort: Callable[[], None] | None = None
        self.status = 0
        """the answer's status, 0 before there is one"""
        self.extra_headers: tuple[tuple[str, str], ...] = ()
        """sent with every answer"""

    def query_values(self, name: str) -> list[str]:
        """Every value of a query parameter."""
        return parse_qs(self.query).get(name, [])

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str | None = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """The whole answer at once."""
        lines = [*headers, ("content-length", str(len(body)))]
        if content_type is not None:
            lines.append(("content-type", content_type))
        self._head(status, lines)
        self._connection.write(body)
        self._done()

    def begin(self, status: int, content_type: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """Status and headers of a chunked answer, sent now."""
        self._head(status, [("content-type", content_type), *headers], chunked=True)
        self._connection.flush()

    def send(self, data: bytes) -> None:
        """Bytes that are already framed with `chunk`."""
        self._connection.send(data)

    def end(self, data: bytes = b"") -> None:
        """The last framed bytes of a chunked answer."""
        self._connection.send(data + LAST_CHUNK)
        self._done()

    def drop(self) -> None:
        """Breaks the connection off without finishing the answer."""
        self._connection.drop()

    def _head(self, status: int, lines: list[tuple[str, str]], *, chunked: bool = False) -> None:
        self.status = status
        fields = "".join(f"{name}: {value}\r\n" for name, value in (*lines, *self.extra_headers))
        framing = "transfer-encoding: chunked\r\n" if chunked else ""
        close = "" if self._connection.keep_alive else "connection: close\r\n"
        self._connection.write(_STATUS_LINES[status])
        self._connection.write(self._connection.clock.line())
        self._connection.write(f"{fields}vary: Origin\r\n{close}{framing}\r\n".encode("latin-1"))

    def _done(self) -> None:
        self.on_abort = None
        self._connection.flush()
        self._connection.exchange_done()


class Connection(asyncio.Protocol):
    """One client connection; its exchanges run one after the other."""

    __slots__ = (
        "_application",
        "_body",
        "_buffer",
        "_current",
        "_header_bytes",
        "_headers",
        "_parser",
        "_ready",
        "_target",
        "_transport",
        "clock",
        "keep_alive",
    )

    def __init__(self, application: Application, clock: _Clock) -> None:
        self._application = application
        self.clock = clock
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._ready: deque[tuple[Exchange, bool]] = deque()
        self._current: Exchange | None = None
        self._buffer: list[bytes] = []
        self._body: list[bytes] = []
        self._headers: dict[str, str] = {}
        self._target = b""
        self._header_bytes = 0
        self.keep_alive = True

    # -- asyncio -------------------------------------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._application.connected(self)

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing is upgraded here: the request was answered as if it had not asked, and the connection ends.
            pass
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST, b"Invalid HTTP request received.")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        current, self._current = self._current, None
        self._ready.clear()
        if current is not None and current.on_abort is not None:
            current.on_abort()
            current.on_abort = None
        # The parser and the connection hold each other.
        del self._parser
        self._application.disconnected(self)

    # -- httptools -----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request line follows."""
        self._headers = {}
        self._body = []
        self._target = b""
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """The request target, perhaps in parts."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Before the body."""
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._header_bytes += len(body)
        if self._header_bytes > MAX_BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"Request body is too large.")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._transport is None or self._transport.is_closing():
            return
        method = self._parser.get_method().decode("latin-1")
        exchange = Exchange(self, method, self._target, self._headers, b"".join(self._body))
        self._body = []
        if len(self._ready) >= _MAX_WAITING_REQUESTS:
            self.drop()
            return
        self._ready.append((exchange, self._parser.should_keep_alive() and not self._parser.should_upgrade()))
        self._next()

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        while self._current is None and self._ready and self._transport is not None:
            exchange, self.keep_alive = self._ready.popleft()
            self._current = exchange
            self._application.handle(exchange)

    def exchange_done(self) -> None:
        """The current answer is complete: close, or go on with the next request."""
        self._current = None
        if not self.keep_alive:
            if self._transport is not None:
                self._transport.close()
            return
        if self._ready:
            self._next()

    def write(self, data: bytes) -> None:
        """Collects bytes of an answer's head and body until `flush`."""
        self._buffer.append(data)

    def flush(self) -> None:
        """Sends what was collected, in one write."""
        data = b"".join(self._buffer)
        self._buffer.clear()
        if data:
            self.send(data)

    def send(self, data: bytes) -> None:
        """One write to the socket; nothing when the client has gone."""
        if self._transport is not None:
            self._transport.write(data)

    def drop(self) -> None:
        """Breaks the connection off."""
        if self._transport is not None:
            self._transport.abort()

    def close_when_idle(self) -> None:
        """Closes the connection now if no answer is under way, else after it."""
        self.keep_alive = False
        if self._current is None and self._transport is not None:
            self._transport.close()

    def _refuse(self, status: HTTPStatus, text: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.keep_alive = False
        exchange = Exchange(self, "", b"", {}, b"")
        self._ready.clear()
        exchange.respond(status.value, text, "text/plain; charset=utf-8")


def protocol_factory(application: Application) -> Callable[[], Connection]:
    """What `loop.create_server` calls for every connection."""
    clock = _Clock()
    return lambda: Connection(application, clock)
