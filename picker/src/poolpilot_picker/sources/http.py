"""Telemetry, step 1 of 3 (fetch → find lines → sample): GETs to one engine over one kept connection.

Written for polls: plain HTTP/1.1 on an asyncio.Protocol costs a third of a general client. Everything has a time-out
and a size limit, an answer is complete or an error, redirects are answers, and nothing is retried but a GET on a kept
connection that the server had already closed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from poolpilot_picker.patience import timeout
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http_connection import Connection
from poolpilot_picker.sources.http_response import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_picker.sources.http_connection import Done, Meter
    from poolpilot_picker.sources.http_response import Answer

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

    def begin(self, target: str, headers: Mapping[str, str], limits: Limits, done: Done) -> bool:
        """A GET without a task: True if it was sent on the kept connection, whose answer, or why there is none, `done`
        is told later; False where there is no such connection. Who begins must bound its time with `close`."""
        ...

    def close(self, error: FetchError | None = None) -> None:
        """Drops the connection; what runs on it fails, with this error."""
        ...


def check_status(response: Response) -> None:
    """Raises FetchError unless the status is 200."""
    status = response.status
    if status == 200:
        return
    if status in (401, 403):
        raise FetchError(ErrorKind.UNAUTHORIZED, f"status {status}: the engine wants other credentials")
    if status in (404, 501):  # llama.cpp answers 501 where a page is not enabled
        raise FetchError(ErrorKind.NOT_FOUND, f"status {status}: no such page")
    if 300 <= status < 400:
        raise FetchError(ErrorKind.REDIRECT, f"status {status}: redirects elsewhere are not followed")
    raise FetchError(ErrorKind.HTTP_STATUS, f"status {status}")


def slash_redirect(response: Response, target: str) -> str | None:
    """The new target where an application only wants a slash more or less at the end of its path, else None."""
    location = response.headers.get("location")
    if response.status not in (301, 302, 307, 308) or location is None:
        return None
    path, _, query = target.partition("?")
    moved = urlsplit(location).path
    if moved == path or moved.rstrip("/") != path.rstrip("/"):
        return None
    return f"{moved}?{query}" if query else moved


class HttpClient:
    """Client over TCP or TLS. `host` is an address; certificates are checked against `server_name` where given."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name or host
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._meter = meter
        self._connection: Connection | None = None
        self._requests: dict[tuple[object, ...], bytes] = {}
        self._newest: tuple[str, Mapping[str, str], bytes] = ("", {}, b"")
        """Target and headers of the last request without a task, and the request."""

    async def get(self, target: str, headers: Mapping[str, str], limits: Limits) -> Response:
        """GET of `target` (path and query). Raises FetchError."""
        request = self._request(target, headers)
        try:
            async with timeout(limits.timeout_ms / 1000.0):
                return await self._exchange(request, limits)
        except TimeoutError:
            self.close()
            raise FetchError(ErrorKind.TIMEOUT, f"no complete answer within {limits.timeout_ms:g} ms") from None
        except BaseException:
            # Also when cancelled: a half-read answer must not be taken for the next one's.
            self.close()
            raise

    def begin(self, target: str, headers: Mapping[str, str], limits: Limits, done: Done) -> bool:
        """A GET on the kept connection, without a task; see `Client`. Headers handed over again must be the same."""
        kept = self._connection
        if kept is None or not kept.usable:
            return False
        newest_target, newest_headers, request = self._newest
        if target is not newest_target or headers is not newest_headers:
            request = self._request(target, headers)
            self._newest = (target, headers, request)
        kept.begin(request, limits.max_bytes, done)
        return True

    def close(self, error: FetchError | None = None) -> None:
        """Drops the connection; a running `get` fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort(error)

    async def _exchange(self, request: bytes, limits: Limits) -> Response:
        kept = self._connection
        if kept is not None and kept.usable:
            try:
                return await _exchange(kept, request, limits)
            except FetchError as error:
                # The server may have closed a kept connection while the request was under way (RFC 9112 9.3.1).
                if error.kind is not ErrorKind.RESET or not error.unheard:
                    raise
                self.close()
        self._connection = await self._connect(limits)
        return await _exchange(self._connection, request, limits)

    async def _connect(self, limits: Limits) -> Connection:
        loop = asyncio.get_running_loop()
        make = partial(Connection, self._meter)
        try:
            async with timeout(limits.connect_timeout_ms / 1000.0):
                if self._tls is None:
                    _, connection = await loop.create_connection(make, self._host, self._port)
                else:
                    _, connection = await loop.create_connection(
                        make, self._host, self._port, ssl=self._tls, server_hostname=self._server_name
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


async def _exchange(connection: Connection, request: bytes, limits: Limits) -> Response:
    answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def done(outcome: Answer | FetchError) -> None:
        if answered.done():
            return  # cancelled in the meantime
        if isinstance(outcome, FetchError):
            answered.set_exception(outcome)
        else:
            answered.set_result(Response(outcome.status, outcome.headers, outcome.body))

    connection.begin(request, limits.max_bytes, done)
    return await answered
