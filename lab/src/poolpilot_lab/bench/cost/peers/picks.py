"""Asks a peer over ext_proc, as Envoy would, whether it serves and which endpoints it knows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION: Final = "x-gateway-destination-endpoint"
_SUBSET: Final = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
_BODY: Final = b'{"model":"m","messages":[{"role":"user","content":"?"}]}'
"""Shorter than a block of any prefix index: asking must leave no trace in it."""
_AT_ONCE: Final = 250
_EXCHANGE_S: Final = 10.0
_FULL_DUPLEX: Final = 4
_PAUSE_S: Final = 0.05


async def is_serving(port: int, host: str = "127.0.0.1") -> bool:
    """What its health service says of ext_proc; OSError while nobody answers."""
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        asked = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            said = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=2.0)
        except grpc.aio.AioRpcError as error:
            raise OSError(f"health of {host}:{port}: {error.code().name}") from error
        return bool(said.status == health_pb2.HealthCheckResponse.SERVING)


async def unknown(port: int, endpoints: Sequence[str], within_s: float, host: str = "127.0.0.1") -> list[str]:
    """Which endpoints it does not choose where nothing else is allowed, asked until it is none or time is up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        call = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=ext_proc.ProcessingRequest.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )
        turns = asyncio.Semaphore(_AT_ONCE)

        async def asked(endpoint: str) -> bool:
            async with turns:
                return await _destination(call, endpoint) == endpoint

        missing = list(endpoints)
        while True:
            chosen = await asyncio.gather(*map(asked, missing))
            missing = [endpoint for endpoint, right in zip(missing, chosen, strict=True) if not right]
            if not missing or loop.time() >= deadline:
                return missing
            await asyncio.sleep(_PAUSE_S)


async def _destination(call: Any, endpoint: str) -> str | None:
    """Where one request goes that may go to `endpoint` alone; None if it is refused."""
    stream = call(timeout=_EXCHANGE_S)
    try:
        for message in _request(endpoint):
            await stream.write(message)
        await stream.done_writing()
        async for reply in stream:
            for field in reply.request_headers.response.header_mutation.set_headers:
                if field.header.key == DESTINATION:
                    raw: bytes = field.header.raw_value
                    return raw.decode("ascii").partition(",")[0]
        return None
    except grpc.aio.AioRpcError:
        return None
    finally:
        stream.cancel()


def _request(endpoint: str) -> list[Any]:
    """A chat request in the body mode that these pickers demand."""
    head, body = ext_proc.ProcessingRequest(), ext_proc.ProcessingRequest()
    head.protocol_config.request_body_mode = head.protocol_config.response_body_mode = _FULL_DUPLEX
    fields = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
    for key, value in fields.items():
        head.request_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
    space, name = _SUBSET
    for message in (head, body):
        # Envoy sends it with each message, and the picker believes the last one.
        message.metadata_context.filter_metadata[space].update({name: [endpoint]})
    body.request_body.body = _BODY
    body.request_body.end_of_stream = True
    return [head, body]
