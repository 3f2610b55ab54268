"""Stand-in engine servers in the test's own event loop, and a raw HTTP/1.1 client that hides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.engine.options import EngineConfig
from poolpilot_lab.engine.server import EngineServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

FAST = EngineConfig(
    port=0,
    profile=PROFILES["llama-3.1-8b-h100"],
    served_model_names=("tiny",),
    max_model_len=2048,
    time_scale=0.02,
    lora_load_ms=0.0,
)
"""Fifty times faster than the real thing."""


@contextlib.asynccontextmanager
async def serving(config: EngineConfig = FAST, **changes: Any) -> AsyncIterator[EngineServer]:
    """One running server."""
    server = EngineServer(replace(config, **changes))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@dataclass
class Reply:
    """A complete answer; `raw` is the head as received."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(method: str, target: str, body: object = None, headers: dict[str, str] | None = None) -> bytes:
    """The bytes of a request; a body that is not bytes goes as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "test", "content-length": str(len(data)), **(headers or {})}
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return head.encode() + b"\r\n" + data


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status and headers."""
    raw = await reader.readuntil(b"\r\n\r\n")
    lines = raw.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    return int(lines[0].split(" ")[1]), headers, raw


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a chunked body, up to the last one."""
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        data = await reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        if size == 0:
            return
        yield data[:-2]


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """One complete answer from a connection."""
    status, headers, raw = await read_head(reader)
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join([chunk async for chunk in read_chunks(reader)])
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return Reply(status, headers, body, raw)


async def call(
    server: EngineServer, method: str, target: str, body: object = None, headers: dict[str, str] | None = None
) -> Reply:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request(method, target, body, {"connection": "close", **(headers or {})}))
        reply = await read_reply(reader)
        assert await reader.read() == b"", "the server closes after connection: close"
        return reply
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def events(body: bytes) -> list[Any]:
    """The events of an SSE body, decoded; `[DONE]` stays a string."""
    parts = body.split(b"\n\n")
    assert parts[-1] == b""
    assert all(part.startswith(b"data: ") for part in parts[:-1])
    return [text if text == "[DONE]" else json.loads(text) for text in (part[6:].decode() for part in parts[:-1])]


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits for something that other tasks bring about."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


def sample(page: bytes, name: str, **labels: str) -> float:
    """The value of one series of a metrics page, told by its name and some of its labels."""
    found = []
    for line in page.decode().splitlines():
        if not line.startswith((f"{name}{{", f"{name} ")):
            continue
        series, _, value = line.rpartition(" ")
        if all(f'{label}="{text}"' in series for label, text in labels.items()):
            found.append(float(value))
    assert len(found) == 1, f"{len(found)} series of {name} with {labels}"
    return found[0]
