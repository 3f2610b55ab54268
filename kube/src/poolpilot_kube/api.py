"""Requests to an API server: one answer, or a watch's lines as they come. Knows nothing of kinds and never retries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import msgspec

from poolpilot_kube.errors import RefusedError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from types import TracebackType

    from poolpilot_kube.access import Access

MOST_LINE_BYTES: Final = 64 * 2**20
"""Longest event; etcd holds no object of this size."""
_READ_BYTES: Final = 2**18
_MOST_WAIT_S: Final = 60.0


class _Status(msgspec.Struct):
    message: str = ""


class KubeApi:
    """One client with its connections."""

    def __init__(self, access: Access, *, user_agent: str = "poolpilot", timeout_s: float = 30.0) -> None:
        """`timeout_s`: for a whole answer that is not a watch, and for a connection to be made."""
        self.access = access
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=timeout_s)
        self._timeout_s = timeout_s
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            ssl=self.access.tls if self.access.tls is not None else True, limit=0, socket_factory=_socket
        )
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"user-agent": self._user_agent, "accept": "application/json"}
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """The answer's body. Raises RefusedError or UnreachableError."""
        return await self.send("GET", path, params)

    async def send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The answer's body; `body` goes out as JSON. Raises RefusedError or UnreachableError."""
        content = None if body is None else msgspec.json.encode(body)
        async with self._asked(path, params or {}, self._timeout, method, content, content_type) as answer:
            return await answer.read()

    async def watch(self, path: str, params: Mapping[str, str], silence_s: float) -> AsyncGenerator[list[bytes], None]:
        """The lines of a watch, as many at a time as have come, until the server ends it; none as soon as it is open.

        Raises RefusedError, or UnreachableError: also where for `silence_s` seconds nothing comes, not even a bookmark.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=silence_s)
        rest = b""
        async with self._asked(path, {**params, "watch": "true"}, limits) as answer:
            yield []
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MOST_LINE_BYTES:
                    raise UnreachableError(f"GET {path}: an event of more than {MOST_LINE_BYTES} bytes")
                if lines:
                    yield lines

    @contextlib.asynccontextmanager
    async def _asked(
        self,
        path: str,
        params: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        method: str = "GET",
        content: bytes | None = None,
        content_type: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("KubeApi is used outside its context")
        what = f"{method} {path}"
        try:
            headers = await self._headers()
            if content is not None:
                headers["content-type"] = content_type
            async with self._session.request(
                method,
                f"{self.access.server}{path}",
                params=params,
                data=content,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
                read_bufsize=_READ_BYTES,
            ) as answer:
                if not answer.ok:
                    said = await answer.read()
                    raise RefusedError(what, answer.status, _message(said), _retry_after_s(answer.headers))
                yield answer
        except TimeoutError as error:
            raise UnreachableError(f"{what}: time-out: {error or 'no answer'}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{what}: {error or type(error).__name__}") from None

    async def _headers(self) -> dict[str, str]:
        # A plugin that fetches a token may take seconds.
        token = await asyncio.to_thread(self.access.token)
        return {"authorization": token} if token else {}


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Notices within half a minute that the other host is gone: a watch sends nothing that would."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def _message(said: bytes) -> str:
    try:
        message = msgspec.json.decode(said, type=_Status).message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        message = said[:200].decode("utf-8", "replace").strip()
    return message or "no reason given"


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    # API servers give seconds. A date would be of their clock.
    return min(float(value), _MOST_WAIT_S) if value.isascii() and value.isdigit() else None
