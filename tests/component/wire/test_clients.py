"""Clients that are not ours: the gRPC library of Python, with compression too, and that of Go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from exchange_desk import ADDRESSES
from extproc_client import chat
from go_tools import built
from wire_server import WireServer

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = Path(__file__).parent / "go"
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


def exchange(text: str = "Tell me of the sea") -> list[ext_proc.ProcessingRequest]:
    """The messages of one exchange in BUFFERED mode, each answered by one."""
    head, body, answer = (ext_proc.ProcessingRequest() for _ in range(3))
    for name, value in ((":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")):
        field = head.request_headers.headers.headers.add()
        field.key, field.raw_value = name, value.encode()
    head.protocol_config.request_body_mode = 2
    body.request_body.body = chat(text)
    body.request_body.end_of_stream = True
    field = answer.response_headers.headers.headers.add()
    field.key, field.raw_value = ":status", b"200"
    answer.attributes["envoy.filters.http.ext_proc"].update(
        {"response.code_details": "via_upstream", "upstream.address": ADDRESSES[0], "upstream.request_attempt_count": 1}
    )
    return [head, body, answer]


def run(port: int, compression: grpc.Compression, streams: int) -> list[int]:
    """Exchanges one after the other over one channel; numbers of answers."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", compression=compression) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=15)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        process = channel.stream_stream(
            METHOD, ext_proc.ProcessingRequest.SerializeToString, ext_proc.ProcessingResponse.FromString
        )

        def messages() -> Iterator[ext_proc.ProcessingRequest]:
            yield from exchange("word " * 20_000)

        return [sum(1 for _ in process(messages(), timeout=15)) for _ in range(streams)]


@pytest.mark.parametrize("compression", list(grpc.Compression), ids=lambda one: one.name)
async def test_python(compression: grpc.Compression) -> None:
    async with WireServer() as server:
        assert await asyncio.to_thread(run, server.port, compression, 5) == [3] * 5
        await server.until(lambda: server.transport.ended == {"OK": 5})


async def test_go(tmp_path: Path) -> None:
    program = built(MODULE, "./client")
    file = tmp_path / "messages"
    data = [message.SerializeToString() for message in exchange()]
    file.write_bytes(b"".join(len(one).to_bytes(4, "big") + one for one in data))
    async with WireServer() as server:
        process = await asyncio.create_subprocess_exec(
            program, f"127.0.0.1:{server.port}", file, "1000", "50", "4",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        assert sorted(said.decode().splitlines()) == ["250 cancelled", "750 ok", "health SERVING"]
        await server.until(lambda: server.transport.streams == 0)
        assert server.transport.ended == {"OK": 750, "Canceled": 250}
        assert server.booked() == 0
