"""A data plane in miniature: ext_proc messages over a real gRPC channel, and the health service beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio
import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from types import TracebackType

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX = range(5)
WAIT_S = 15.0
"""Long enough for a busy machine; nothing waits this long when all is well."""


def chat(text: str = "Tell me of the sea", model: str = "m", **more: Any) -> bytes:
    """A chat body."""
    return msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": text}], **more})


class Stream:
    """One HTTP exchange as the data plane's filter sees it."""

    def __init__(self, call: Any, request_mode: int | None, response_mode: int) -> None:
        self._call = call
        self._modes = None if request_mode is None else (request_mode, response_mode)

    async def send(self, message: ext_proc.ProcessingRequest) -> None:
        """Sends a message as it is; the first one tells the modes."""
        if self._modes is not None:
            message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = self._modes
            self._modes = None
        await asyncio.wait_for(self._call.write(message), WAIT_S)

    async def headers(self, path: str = "/v1/chat/completions", *, end: bool = False, **fields: str | bytes) -> None:
        """RequestHeaders; `_` in names of fields stands for `-`."""
        message = ext_proc.ProcessingRequest()
        part = message.request_headers
        part.end_of_stream = end
        named = {":method": "POST", ":path": path, "content-type": "application/json", "x-request-id": "r"}
        named |= {name.replace("_", "-"): value for name, value in fields.items()}  # type: ignore[misc]
        _fill(part, named)
        await self.send(message)

    async def body(self, chunk: bytes, *, end: bool = True) -> None:
        """RequestBody."""
        message = ext_proc.ProcessingRequest()
        message.request_body.body = chunk
        message.request_body.end_of_stream = end
        await self.send(message)

    async def answer(self, address: str, status: str = "200", *, details: str = "via_upstream") -> None:
        """ResponseHeaders."""
        message = ext_proc.ProcessingRequest()
        _fill(message.response_headers, {":status": status, "content-type": "application/json"})
        attributes = message.attributes["envoy.filters.http.ext_proc"]
        attributes["response.code_details"] = details
        attributes["upstream.address"] = address
        attributes["upstream.request_attempt_count"] = 1
        await self.send(message)

    async def answer_body(self, chunk: bytes, *, end: bool = False) -> None:
        """ResponseBody."""
        message = ext_proc.ProcessingRequest()
        message.response_body.body = chunk
        message.response_body.end_of_stream = end
        await self.send(message)

    async def read(self) -> ext_proc.ProcessingResponse | None:
        """The next answer; None where the picker ended the stream with OK. Raises AioRpcError for every other end."""
        reply = await asyncio.wait_for(self._call.read(), WAIT_S)
        if reply is grpc.aio.EOF:
            code = await asyncio.wait_for(self._call.code(), WAIT_S)
            assert code is grpc.StatusCode.OK, f"{code}: {await self._call.details()}"
            return None
        assert isinstance(reply, ext_proc.ProcessingResponse)
        return reply

    async def must_read(self) -> ext_proc.ProcessingResponse:
        """The next answer."""
        reply = await self.read()
        assert reply is not None, "the stream has ended"
        return reply

    async def place(self) -> str:
        """Sends a chat request in BUFFERED form; returns where it was placed."""
        await self.headers()
        await self.must_read()
        await self.body(chat())
        return destination(await self.must_read())

    async def code(self) -> grpc.StatusCode:
        """How the picker ended the stream."""
        code = await asyncio.wait_for(self._call.code(), WAIT_S)
        assert isinstance(code, grpc.StatusCode)
        return code

    async def done(self) -> None:
        """Half-closes, as Envoy does when no message can follow; waits for the picker to end the stream."""
        await self._call.done_writing()
        assert await self.read() is None

    def reset(self) -> None:
        """Breaks the stream off."""
        self._call.cancel()


def _fill(part: ext_proc.HttpHeaders, fields: dict[str, Any]) -> None:
    for key, value in fields.items():
        raw = value if isinstance(value, bytes) else value.encode()
        part.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=raw))


def destination(reply: ext_proc.ProcessingResponse) -> str:
    """Where a reply sends the request; header and metadata say the same. Empty where it says nothing."""
    part = getattr(reply, str(reply.WhichOneof("response")))
    fields = {one.header.key: one.header.raw_value.decode() for one in part.response.header_mutation.set_headers}
    by_header = fields.get(DESTINATION, "")
    metadata = reply.dynamic_metadata
    assert (metadata["envoy.lb"][DESTINATION] if "envoy.lb" in metadata else "") == by_header
    return by_header


class DataPlane:
    """A channel to a picker."""

    def __init__(self, port: int, credentials: grpc.ChannelCredentials | None = None, host: str = "127.0.0.1") -> None:
        target = f"{host}:{port}"
        # Channels of one process would else share one connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(target, options=options)
        else:
            self.channel = grpc.aio.secure_channel(target, credentials, options=options)
        self._process = self.channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=ext_proc.ProcessingRequest.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )
        self.raw = self.channel.stream_stream(f"/{SERVICE}/Process")
        """The same without encoding."""
        self._health = health_pb2_grpc.HealthStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    def open(self, request_mode: int | None = BUFFERED, response_mode: int = NONE) -> Stream:
        """A new exchange."""
        return Stream(self._process(), request_mode, response_mode)

    async def exchange(self) -> str:
        """A whole one, answered by the endpoint that was named first; returns where it was placed."""
        stream = self.open()
        place = await stream.place()
        await stream.answer(place.split(",")[0])
        await stream.must_read()
        await stream.done()
        return place

    async def health(self, service: str = "") -> str:
        """Status of a service; raises AioRpcError where it is not known."""
        answer = await self._health.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def watch(self, service: str = "") -> Any:
        """A stream of statuses."""
        return self._health.Watch(health_pb2.HealthCheckRequest(service=service))
