"""One HTTP/1.1 connection that sends a request and times the streamed answer: the client's edge to the gateway.

An `asyncio.Protocol`: one parse per chunk, no task and no queue in between, so that a client of hundreds of streams
leaves the processor to the servers.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import httptools
from typing_extensions import override

from poolpilot_lab.client.errors import ExchangeError


@dataclass(slots=True)
class Answer:
    """What came back, and when: seconds of `time.monotonic`, for uvloop's own clock only knows whole milliseconds."""

    sent_s: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    headers_s: float = 0.0
    chunks: list[bytes] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    """When each of `chunks` arrived."""
    end_s: float = 0.0

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)


class Connection(asyncio.Protocol):
    """Sends one request at a time; reusable while `usable`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Answer] | None = None
        self._answer: Answer | None = None
        self._now_s = 0.0

    @property
    def usable(self) -> bool:
        """Connected and between two requests."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answer:
        """Sends one request and returns the complete answer. When cancelled, the connection is closed.

        Raises ExchangeError.
        """
        if self._transport is None or self._transport.is_closing():
            raise ExchangeError("the connection is closed")
        assert self._answer is None, "one exchange at a time"
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method == "POST":
            lines.append(f"content-length: {len(body)}")
        self._waiter = asyncio.get_running_loop().create_future()
        self._answer = Answer(time.monotonic())
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        try:
            return await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """Closes at once; what is under way fails."""
        if self._transport is not None:
            self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._now_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not an HTTP answer: {error}")
            self.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(f"the connection was lost in mid-answer{f': {exc}' if exc else ''}")

    def _fail(self, reason: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ExchangeError(reason))

    # Called by the parser.

    def on_message_begin(self) -> None:
        """The first byte of an answer; an answer nobody asked for is a broken server."""
        if self._answer is None:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._answer is not None:
            self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Status and headers are there; a stand-in vLLM sends them before it computes anything."""
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()
            self._answer.headers_s = self._now_s

    def on_body(self, body: bytes) -> None:
        """One chunk, or a piece of one."""
        if self._answer is not None:
            self._answer.chunks.append(body)
            self._answer.chunk_s.append(self._now_s)

    def on_message_complete(self) -> None:
        """The end of the answer."""
        if self._answer is None or self._waiter is None or self._waiter.done():
            return
        self._answer.end_s = self._now_s
        keep = self._parser.should_keep_alive()
        self._waiter.set_result(self._answer)
        if not keep and self._transport is not None:
            self._transport.close()
