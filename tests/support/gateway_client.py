"""Clients that show exactly what came over the wire: HTTP/1 by hand, HTTP/2 by the h2 package."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import h2.config
import h2.connection
import h2.events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

Headers = dict[str, str]
JSON = {"content-type": "application/json"}


@dataclass
class Response:
    """What a client got. `complete`: the answer ended as its framing promised."""

    status: int
    headers: Headers = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    chunks: int = 0
    trailers: Headers = field(default_factory=dict)
    informational: list[int] = field(default_factory=list)

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def pod(self) -> str:
        """Address of the pod that answered, empty for a local reply."""
        return self.headers.get("x-pod-address", "")


class Http1:
    """One HTTP/1.1 connection; use `request` for a whole exchange or the parts for a broken one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1") -> Http1:
        """Opens a connection."""
        return cls(*await asyncio.open_connection(host, port, limit=1 << 20))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Closes at once, whatever is in flight."""
        self.writer.transport.abort()

    def send_head(self, method: str, path: str, headers: Headers) -> None:
        """Request line and headers; adds a host."""
        lines = [f"{method} {path} HTTP/1.1", "host: pool", *(f"{name}: {value}" for name, value in headers.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    def send_chunk(self, data: bytes) -> None:
        """One chunk of a chunked body; an empty one ends it."""
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def read_head(self) -> Response:
        """Status and headers; informational answers are remembered, not returned."""
        informational: list[int] = []
        while True:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
            if 100 <= status < 200 and status != 101:
                informational.append(status)
                continue
            pairs = (line.partition(":") for line in lines[1:] if line)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            return Response(status, headers, informational=informational)

    async def body_chunks(self, response: Response) -> AsyncIterator[bytes]:
        """The body as it arrives; sets `complete`, `chunks` and `trailers`. Ends quietly when it is cut off."""
        try:
            if response.headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await self.reader.readline()).split(b";")[0] or b"-1", 16):
                    if size < 0:
                        return
                    data = await self.reader.readexactly(size)
                    await self.reader.readexactly(2)
                    response.chunks += 1
                    yield data
                while line := (await self.reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    response.trailers[name.strip().lower()] = value.strip()
                response.complete = True
            elif "content-length" in response.headers:
                left = int(response.headers["content-length"])
                while left and (data := await self.reader.read(min(left, 1 << 16))):
                    left -= len(data)
                    yield data
                response.complete = left == 0
            else:
                response.complete = response.status in (204, 304)
        except (asyncio.IncompleteReadError, OSError):
            return

    async def read_response(self, *, bodiless: bool = False) -> Response:
        """A whole answer."""
        response = await self.read_head()
        if bodiless:
            response.complete = True
            return response
        response.body = b"".join([chunk async for chunk in self.body_chunks(response)])
        return response

    async def request(
        self,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        *,
        headers: Headers | None = None,
        body: bytes | Iterable[bytes] | None = b"",
    ) -> Response:
        """A whole exchange. Bytes are sent with their length, anything else as chunks, None without either."""
        sent = {**JSON, **(headers or {})}
        if isinstance(body, bytes):
            self.send_head(method, path, {**sent, "content-length": str(len(body))})
            self.writer.write(body)
        elif body is None:
            self.send_head(method, path, sent)
        else:
            self.send_head(method, path, {**sent, "transfer-encoding": "chunked"})
            for chunk in body:
                self.send_chunk(chunk)
            self.send_chunk(b"")
        # The other side may answer (413) before it has read everything.
        draining = asyncio.ensure_future(self.writer.drain())
        try:
            return await self.read_response(bodiless=method == "HEAD")
        finally:
            draining.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await draining


async def http2(
    port: int, path: str = "/v1/chat/completions", *, headers: Headers | None = None, body: bytes = b""
) -> Response:
    """One POST over HTTP/2 with prior knowledge."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    pseudo = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "pool")]
    connection.send_headers(1, [*pseudo, *{**JSON, **(headers or {})}.items()], end_stream=not body)
    response = Response(0)
    left = memoryview(body)
    try:
        while True:
            while left and (room := min(connection.local_flow_control_window(1), connection.max_outbound_frame_size)):
                connection.send_data(1, left[:room].tobytes(), end_stream=room >= len(left))
                left = left[room:]
            writer.write(connection.data_to_send())
            data = await reader.read(1 << 16)
            if not data:
                return response
            for event in connection.receive_data(data):
                match event:
                    case h2.events.ResponseReceived(headers=received):
                        response.headers = {str(name): str(value) for name, value in received or ()}
                        response.status = int(response.headers.pop(":status"))
                    case h2.events.DataReceived(data=chunk, flow_controlled_length=length):
                        response.body += chunk or b""
                        response.chunks += 1
                        connection.acknowledge_received_data(length or 0, 1)
                    case h2.events.TrailersReceived(headers=received):
                        response.trailers = {str(name): str(value) for name, value in received or ()}
                    case h2.events.StreamEnded():
                        response.complete = True
                        return response
                    case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                        return response
    finally:
        writer.close()
