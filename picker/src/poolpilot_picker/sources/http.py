"""Telemetry, step 1 of 3 (fetch → find lines → sample): GETs to one engine over one kept connection.

Written for polls: plain HTTP/1.1 on an asyncio.Protocol costs a third of a general client. Everything has a time-out
and a size limit, an answer is complete or an error, redirects are answers, and nothing is retried but a GET on a kept
connection that the server had already closed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec
from typing_extensions import override

from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http_response import Response, ResponseReader

if TYPE_CHECKING:
    from collections.abc import Mapping

_TARGET: Final = re.compile(r"/[!-~]*")
_KEPT_REQUESTS: Final = 8


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one GET. Times in ms, sizes in bytes."""

    connect_timeout_ms: float = 500.0
    timeout_ms: float = 1_000.0
    """From the call to the last byte, connecting included."""
    max_bytes: int = 2**20
    """Real pages have 20 to 200 KB. They are read on the event loop: what a mad engine may send is time of requests."""


class Client(Protocol):
    """What a source needs of a connection to one engine; calls do not overlap."""

    async def get(self, target: str, headers: Mapping[str, str], limits: Limits) -> Response:
        """The complete answer, whatever its status. Raises FetchError."""
        ...

    def close(self) -> None:
        """Drops the connection; a running `get` fails."""
        ...


class HttpClient:
    """Client over TCP or TLS. `host` is an address; certificates are checked against `server_name` where given."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name or host
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._connection: _Connection | None = None
        self._requests: dict[tuple[object, ...], bytes] = {}

    async def get(self, target: str, headers: Mapping[str, str], limits: Limits) -> Response:
        """GET of `target` (path and query). Raises FetchError."""
        request = self._request(target, headers)
        try:
            async with asyncio.timeout(limits.timeout_ms / 1000.0):
                return await self._exchange(request, limits)
        except TimeoutError:
            self.close()
            raise FetchError(ErrorKind.TIMEOUT, f"no complete answer within {limits.timeout_ms:g} ms") from None
        except BaseException:
            # Also when cancelled: a half-read answer must not be taken for the next one's.
            self.close()
            raise

    def close(self) -> None:
        """Drops the connection; a running `get` fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _exchange(self, request: bytes, limits: Limits) -> Response:
        kept = self._connection
        if kept is not None and kept.usable:
            reader = ResponseReader(limits.max_bytes)
            try:
                return await self._send(kept, request, reader)
            except FetchError as error:
                # The server may have closed a kept connection while the request was under way (RFC 9112 9.3.1).
                if error.kind is not ErrorKind.RESET or reader.started:
                    raise
                self.close()
        self._connection = await self._connect(limits)
        return await self._send(self._connection, request, ResponseReader(limits.max_bytes))

    async def _send(self, connection: _Connection, request: bytes, reader: ResponseReader) -> Response:
        response = await connection.exchange(request, reader)
        if not reader.keep_alive:
            self.close()
        return response

    async def _connect(self, limits: Limits) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limits.connect_timeout_ms / 1000.0):
                if self._tls is None:
                    _, connection = await loop.create_connection(_Connection, self._host, self._port)
                else:
                    _, connection = await loop.create_connection(
                        _Connection, self._host, self._port, ssl=self._tls, server_hostname=self._server_name
                    )
        except TimeoutError:
            detail = f"no connection within {limits.connect_timeout_ms:g} ms"
            raise FetchError(ErrorKind.CONNECT_TIMEOUT, detail) from None
        except ConnectionRefusedError:
            raise FetchError(ErrorKind.REFUSED, "connection refused") from None
        except ssl.SSLError as error:
            raise FetchError(ErrorKind.TLS, error.reason or "TLS handshake failed") from None
        except ConnectionError as error:
            raise FetchError(ErrorKind.RESET, error.strerror or "connection reset") from None
        except OSError as error:
            raise FetchError(ErrorKind.UNREACHABLE, error.strerror or "cannot connect") from None
        return connection

    def _request(self, target: str, headers: Mapping[str, str]) -> bytes:
        # A poll is the same request again and again.
        key = (target, *headers.items())
        known = self._requests.get(key)
        if known is not None:
            return known
        if not _TARGET.fullmatch(target):
            raise ValueError(f"request target {target!r}: a path without blanks is needed")
        lines = [f"GET {target} HTTP/1.1", f"Host: {self._authority}", "Accept-Encoding: identity"]
        for name, value in headers.items():
            if "\r" in value or "\n" in value:
                raise ValueError(f"header {name}: a line break in the value")
            lines.append(f"{name}: {value}")
        request = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if len(self._requests) >= _KEPT_REQUESTS:
            self._requests.clear()
        self._requests[key] = request
        return request


class _Connection(asyncio.Protocol):
    """One TCP connection; at most one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._done: asyncio.Future[Response] | None = None
        self._lost = False

    @property
    def usable(self) -> bool:
        """Open, and the server has not said that it will close."""
        return self._transport is not None and not self._lost and not self._transport.is_closing()

    async def exchange(self, request: bytes, reader: ResponseReader) -> Response:
        """Sends the request and waits for the complete answer."""
        if self._transport is None or self._lost:
            raise FetchError(ErrorKind.RESET, "connection closed")
        self._reader = reader
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        finally:
            self._reader = self._done = None

    def abort(self) -> None:
        """Closes at once."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        self._fail(FetchError(ErrorKind.RESET, "connection closed"))

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._lost:
            self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        if self._reader is None or self._done is None or self._done.done():
            self.abort()  # bytes nobody asked for: the connection cannot be trusted any more
            return
        try:
            self._reader.feed(data)
        except FetchError as error:
            self._fail(error)
            self.abort()
            return
        if self._reader.response is not None:
            self._done.set_result(self._reader.response)

    @override
    def eof_received(self) -> bool:
        self._lost = True
        if self._reader is not None and self._done is not None and not self._done.done():
            try:
                self._reader.end()
            except FetchError as error:
                self._fail(error)
            else:
                assert self._reader.response is not None
                self._done.set_result(self._reader.response)
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        detail = "connection reset" if exc is not None else "connection closed before the end of the answer"
        self._fail(FetchError(ErrorKind.RESET, detail))

    def _fail(self, error: FetchError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
