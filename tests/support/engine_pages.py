"""A scripted HTTP/1.1 server on loopback, and a sink that records, for the tests of the sources."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from poolpilot_picker.sources.errors import ErrorKind
    from poolpilot_picker.state.samples import EngineSample, ServedModels

DATA = Path(__file__).parents[1] / "data/engines"

MODELS = (
    b'{"object":"list","data":[{"id":"tiny","object":"model","parent":null,"max_model_len":2048},'
    b'{"id":"ad-a","object":"model","root":"/adapters/a","parent":"tiny"}]}'
)


def page(name: str) -> bytes:
    """A recorded page, such as `vllm-0.32/metrics-idle.txt`."""
    return (DATA / name).read_bytes()


def answer(
    body: bytes = b"", status: int = 200, content_type: str = "text/plain; version=0.0.4", **headers: str
) -> bytes:
    """One whole HTTP answer with content-length."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Request:
    """What the server was asked."""

    def __init__(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.target = lines[0].split(" ")[1]
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:]) if name}


Reply = bytes | None | Awaitable[bytes | None]
"""Bytes to send; None closes the connection; a coroutine may wait first."""


class ScriptedServer:
    """Answers each GET by `handler(request)`; keeps connections. `requests` is what it was asked, in order."""

    def __init__(self, handler: Callable[[Request], Reply]) -> None:
        self.handler = handler
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spec(self, **fields: object) -> EndpointSpec:
        return EndpointSpec(host="127.0.0.1", port=self.port, **fields)  # type: ignore[arg-type]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = Request(head)
                self.requests.append(request)
                reply = self.handler(request)
                data = reply if isinstance(reply, bytes | None) else await reply
                if data is None:
                    return
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # a stream's own callback would report a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(handler: Callable[[Request], Reply]) -> AsyncIterator[ScriptedServer]:
    """A ScriptedServer for the length of a block."""
    server = ScriptedServer(handler)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class RecordingSink:
    """Keeps what a source says; `wait` until something was said."""

    def __init__(self) -> None:
        self.samples: list[tuple[str, EngineSample]] = []
        self.models: list[tuple[str, ServedModels | None]] = []
        self.restarts: list[str] = []
        self.unreachable: list[tuple[str, ErrorKind, float]] = []
        self.order: list[str] = []

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        self.samples.append((spec.address, sample))
        self.order.append("sample")

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        self.models.append((spec.address, models))
        self.order.append("models")

    def on_restart(self, spec: EndpointSpec) -> None:
        self.restarts.append(spec.address)
        self.order.append("restart")

    def on_unreachable(self, spec: EndpointSpec, reason: ErrorKind, since_ms: float) -> None:
        self.unreachable.append((spec.address, reason, since_ms))
        self.order.append("unreachable")


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Waits until the condition holds; AssertionError after the (generous) time-out."""
    end = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < end, "condition did not come true"
        await asyncio.sleep(0.005)
