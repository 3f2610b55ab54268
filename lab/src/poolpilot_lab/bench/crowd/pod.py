"""The model server of a crowd: it answers when it is told to, and notes in which order it was asked. HTTP/1.

A request's `x-n` is its number, its `x-do` what becomes of it: `hold` waits for `let_go`, `stream` begins an answer and
waits for `let_go` to end it, all else is answered at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

_WHOLE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_BEGUN: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\n"
)
_ENDED: Final = b"0\r\n\r\n"


class Pod:
    """One listener on a loopback port."""

    def __init__(self) -> None:
        self.port = 0
        self.order: list[int] = []
        """Numbers of requests as they came."""
        self.let_go = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=8_192)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Ends every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
                while True:
                    await self._exchange(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if "chunked" in fields.get("transfer-encoding", ""):
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.readexactly(int(fields.get("content-length", 0)))
        if "x-n" in fields:
            self.order.append(int(fields["x-n"]))
        match fields.get("x-do", ""):
            case "hold":
                await self.let_go.wait()
                writer.write(_WHOLE)
            case "stream":
                writer.write(_BEGUN)
                await self.let_go.wait()
                writer.write(_ENDED)
            case _:
                writer.write(_WHOLE)
        await writer.drain()
