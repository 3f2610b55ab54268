"""Model servers that do what a request's `x-pod` header says, and remember what reached them.

`x-pod: "21102=reset;*=sse.20.5"`: the part for the pod's own port wins over `*`; the default is `ok`.

| script | the pod |
|---|---|
| `ok` | 200 with a JSON body that tells port, body length and SHA-256 of the body |
| `status.N` | answers N |
| `flaky.N` | answers N to every other of these, `ok` to the rest |
| `reset` | resets the connection instead of answering |
| `hang` | never answers |
| `held` | waits until `let_go` is set, then `ok` |
| `slow.S` | waits S seconds, then `ok` |
| `sse.N.MS` | an OpenAI stream of N content events, MS ms apart, usage, `[DONE]` |
| `half` | starts a chunked answer and resets the connection |
| `trailers` | a chunked answer with trailers |
| `redirect` | 302 to `/redirected` |
| `echo` | sends the request body back |
| `ok`, for an upgrade or CONNECT | 101 or 200, then every byte comes back with `echo:` before it |
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

Headers = dict[str, str]


@dataclass
class Hit:
    """One request that reached a pod."""

    address: str
    method: str
    path: str
    headers: Headers
    length: int = 0
    sha256: str = ""
    broken: bool = False
    """The other side closed before the answer was complete."""


def sse_events(count: int) -> list[bytes]:
    """What `sse.N.MS` sends: role, N content events, usage, end."""
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    chunks += [{"choices": [{"index": 0, "delta": {"content": f" w{n}"}, "finish_reason": None}]} for n in range(count)]
    usage = {"prompt_tokens": 40, "completion_tokens": count, "total_tokens": 40 + count}
    chunks.append({"choices": [], "usage": usage})
    texts = [json.dumps({"id": "c", "object": "chat.completion.chunk", "model": "m", **chunk}) for chunk in chunks]
    return [f"data: {text}\n\n".encode() for text in [*texts, "[DONE]"]]


@dataclass
class Pod:
    """One HTTP/1 server on a loopback address."""

    host: str = "127.0.0.1"
    port: int = 0
    hits: defaultdict[str, list[Hit]] = field(default_factory=lambda: defaultdict(list))
    """By the request's `x-tid`."""
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers the requests of script `held`."""
    _turns: int = 0
    """Requests of script `flaky` so far."""
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def address(self) -> str:
        """`ip:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> Pod:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Closes the listener and every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while await self._exchange(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request; False when the connection is to be closed."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        hit = Hit(self.address, method, path, headers)
        self.hits[headers.get("x-tid", "?")].append(hit)
        if ("upgrade" in headers or method == "CONNECT") and self._script(headers) == ["ok"]:
            await _tunnel(reader, writer, connect=method == "CONNECT")
            return False
        body = await _read_body(reader, headers)
        hit.length, hit.sha256 = len(body), hashlib.sha256(body).hexdigest()
        script = self._script(headers)
        try:
            return await self._answer(script, hit, body, writer)
        except OSError:
            hit.broken = True
            raise

    def _script(self, headers: Headers) -> list[str]:
        parts = dict(part.split("=", 1) for part in headers.get("x-pod", "").split(";") if "=" in part)
        return parts.get(str(self.port), parts.get("*", "ok")).split(".", 1)

    async def _answer(self, script: list[str], hit: Hit, body: bytes, writer: asyncio.StreamWriter) -> bool:
        name, argument = script[0], script[1] if len(script) > 1 else ""
        match name:
            case "reset":
                _reset(writer)
                return False
            case "hang":
                await asyncio.Event().wait()
            case "held":
                await self.let_go.wait()
            case "slow":
                await asyncio.sleep(float(argument))
            case "sse":
                await self._sse(argument, hit, writer)
                return True
            case "half":
                writer.write(_head(200, self.address, chunked=True) + b"5\r\nhello\r\n")
                await writer.drain()
                await asyncio.sleep(0.1)
                _reset(writer)
                return False
            case "trailers":
                writer.write(_head(200, self.address, chunked=True, trailer="x-checksum"))
                writer.write(b"5\r\nhello\r\n0\r\nx-checksum: 42\r\n\r\n")
                return True
            case "redirect":
                writer.write(_head(302, self.address, length=0, location="http://pool/redirected"))
                return True
            case "echo":
                kind = hit.headers.get("content-type", "text/plain")
                writer.write(_head(200, self.address, length=len(body), content_type=kind) + body)
                await writer.drain()
                return True
        if name == "flaky":
            self._turns += 1
            name = "status" if self._turns % 2 else "ok"
        status = int(argument) if name == "status" else 200
        told = {"pod": self.address, "length": hit.length, "sha256": hit.sha256}
        answer = json.dumps(told).encode()
        head = _head(status, self.address, length=len(answer), content_type="application/json")
        writer.write(head + (b"" if hit.method == "HEAD" else answer))
        await writer.drain()
        return True

    async def _sse(self, argument: str, hit: Hit, writer: asyncio.StreamWriter) -> None:
        count, gap_ms = (float(part) for part in argument.split("."))
        writer.write(_head(200, self.address, chunked=True, content_type="text/event-stream"))
        for event in sse_events(int(count)):
            if writer.is_closing():
                hit.broken = True
                raise ConnectionResetError
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(gap_ms / 1000)
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _head(
    status: int,
    address: str,
    *,
    length: int | None = None,
    chunked: bool = False,
    content_type: str = "text/plain",
    **more: str,
) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"x-pod-address: {address}", f"content-type: {content_type}"]
    if length is not None:
        lines.append(f"content-length: {length}")
    if chunked:
        lines.append("transfer-encoding: chunked")
    lines += [f"{name}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_body(reader: asyncio.StreamReader, headers: Headers) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        pieces = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        while (await reader.readline()).strip():
            pass  # trailers
        return b"".join(pieces)
    return await reader.readexactly(int(headers.get("content-length", 0)))


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, connect: bool) -> None:
    switching = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if connect else switching)
    while data := await reader.read(4096):
        writer.write(b"echo:" + data)
        await writer.drain()


class GrpcPod:
    """An h2c gRPC server: `/test.Echo/Unary` and `/test.Echo/Chat` (bidirectional) answer with what they got, reversed.

    `/test.Echo/Fail` answers status 8 (RESOURCE_EXHAUSTED).
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = 0
        self.calls: list[str] = []
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """`ip:port`."""
        return f"{self.host}:{self.port}"

    async def start(self) -> GrpcPod:
        """Listens."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "Chat": grpc.stream_stream_rpc_method_handler(self._chat),
            "Fail": grpc.unary_unary_rpc_method_handler(self._fail),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
        self.port = self._server.add_insecure_port(f"{self.host}:0")
        await self._server.start()
        return self

    async def stop(self) -> None:
        """Ends every call."""
        if self._server is not None:
            await self._server.stop(0)

    async def _unary(self, request: bytes, context: Any) -> bytes:
        self.calls.append("Unary")
        return request[::-1]

    async def _fail(self, request: bytes, context: Any) -> bytes:
        self.calls.append("Fail")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")
        raise AssertionError

    async def _chat(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.calls.append("Chat")
        async for request in requests:
            yield request[::-1]


class Pods:
    """Several pods, and every hit on any of them."""

    def __init__(self, pods: list[Pod]) -> None:
        self.pods = pods

    def __iter__(self) -> Iterator[Pod]:
        return iter(self.pods)

    def __getitem__(self, index: int) -> Pod:
        return self.pods[index]

    @property
    def addresses(self) -> list[str]:
        """`ip:port` of each."""
        return [pod.address for pod in self.pods]

    def hits(self, tid: str) -> list[Hit]:
        """Requests with this `x-tid` that reached any pod."""
        return [hit for pod in self.pods for hit in pod.hits[tid]]
