"""A tiny chat server: the least that the load client can be tested against."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def event(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def choice(content: str | None, finish: str | None = None) -> dict[str, Any]:
    """A chunk with one choice, as vLLM writes it."""
    delta = {"content": content} if content is not None else {}
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}


def completion_events(tokens: int, prompt_tokens: int = 7, cached_tokens: int | None = 3) -> list[bytes]:
    """The events of a streamed answer of `tokens` tokens."""
    details = None if cached_tokens is None else {"cached_tokens": cached_tokens}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "prompt_tokens_details": details}
    return [
        event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
        *(event(choice(f" w{index}", "length" if index == tokens - 1 else None)) for index in range(tokens)),
        event({"id": "x", "choices": [], "usage": usage}),
        event(b"[DONE]"),
    ]


@dataclass
class FakeChat:
    """Answers each POST with its `events`; what it received is kept in `bodies`."""

    instance: str = "fake"
    status: int = 200
    token_s: float = 0.0
    hang: bool = False
    close_after: int | None = None
    """Close the connection after so many events."""
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeChat]:
        """Serves while the block runs."""
        handlers: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handlers.add(task)
            self.connections += 1
            try:
                await self._serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                handlers.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(handlers):
                task.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.bodies.append(body)
            writer.write(
                f"HTTP/1.1 {self.status} X\r\nx-engine-instance: {self.instance}\r\n"
                "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".encode()
            )
            if self.hang:
                await asyncio.Event().wait()
            for index, data in enumerate(completion_events(int(headers["x-engine-output-tokens"]))):
                if index == self.close_after:
                    return
                if self.token_s:
                    await asyncio.sleep(self.token_s)
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
