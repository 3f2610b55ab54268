"""Exchanges whose body never ends while the picker waits: upgrades and gRPC are picked at the headers, and pass."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from gateway_client import Http1
from gateway_pods import GrpcPod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway_site import Lane

MODES = ["partial", "buffered", "duplex"]
UPGRADE = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}


@pytest.mark.parametrize("mode", [*MODES, *(f"{mode}-original-dst" for mode in MODES)])
async def test_websocket(lane: Lane, mode: str) -> None:
    pod = lane.pods[2]
    tid, sent = lane.headers(to=[pod.address])
    async with await Http1.connect(lane.port(mode)) as connection:
        connection.send_head(
            "GET",
            "/v1/realtime",
            {**sent, "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"},
        )
        assert (await connection.read_head()).status == 101
        for word in (b"hello", b"x" * 3000):
            connection.writer.write(word)
            assert await connection.reader.readexactly(len(word) + 5) == b"echo:" + word
        assert lane.picker.in_flight() == {pod.address: 1}, "a tunnel is an exchange in progress"
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 1}
    assert [hit.address for hit in lane.pods.hits(tid)] == [pod.address]


@pytest.mark.parametrize("mode", MODES)
async def test_connect(lane: Lane, mode: str) -> None:
    pod = lane.pods[1]
    _, sent = lane.headers(to=[pod.address])
    async with await Http1.connect(lane.port(f"{mode}-connect")) as connection:
        connection.send_head("CONNECT", "somewhere:443", sent)
        assert (await connection.read_head()).status == 200
        connection.writer.write(b"hello")
        assert await connection.reader.readexactly(10) == b"echo:hello"
        assert lane.picker.in_flight() == {pod.address: 1}
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 1}


@pytest.mark.parametrize("mode", MODES)
async def test_a_pod_that_refuses_the_upgrade(lane: Lane, mode: str) -> None:
    """No route for it there: a plain answer instead of 101."""
    _, sent = lane.headers(to=[lane.pods[1].address], script="*=status.404")
    async with await Http1.connect(lane.port(mode)) as connection:
        connection.send_head("GET", "/ws", {**sent, **UPGRADE})
        assert (await connection.read_response()).status == 404
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"rejected": 1}


# ── gRPC ─────────────────────────────────────────────────────────────────────


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def grpc_pod() -> AsyncIterator[GrpcPod]:
    pod = await GrpcPod().start()
    yield pod
    await pod.stop()


@pytest_asyncio.fixture(params=MODES, loop_scope="session")
async def grpc_lane(lane: Lane, grpc_pod: GrpcPod, request: pytest.FixtureRequest) -> tuple[Lane, str]:
    """A lane whose observed picker is the one of the gRPC pool; and the address of the listener."""
    lane.picker = lane.site.second
    await lane.renew([grpc_pod.address])
    return lane, f"127.0.0.1:{lane.port(request.param + '-grpc')}"


@pytest.mark.parametrize("size", [0, 100, 300_000, 3_000_000])
async def test_grpc_unary(grpc_lane: tuple[Lane, str], size: int) -> None:
    lane, address = grpc_lane
    options = [("grpc.max_receive_message_length", 8 << 20)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        payload = bytes(index % 251 for index in range(size))
        assert await channel.unary_unary("/test.Echo/Unary")(payload, timeout=10) == payload[::-1]
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 1}


async def test_grpc_bidirectional(grpc_lane: tuple[Lane, str], grpc_pod: GrpcPod) -> None:
    """An answer comes before the client has finished: nothing is held back."""
    lane, address = grpc_lane
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream("/test.Echo/Chat")(timeout=20)
        for number in range(50):
            message = f"message {number} ".encode() * 20
            await call.write(message)
            assert await call.read() == message[::-1]
            assert lane.picker.in_flight() == {grpc_pod.address: 1}
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 1}


async def test_a_cancelled_grpc_stream(grpc_lane: tuple[Lane, str]) -> None:
    lane, address = grpc_lane
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream("/test.Echo/Chat")(timeout=20)
        await call.write(b"x")
        await call.read()
        call.cancel()
    await lane.picker.until_idle()


async def test_a_grpc_status_of_the_pod_passes(grpc_lane: tuple[Lane, str]) -> None:
    lane, address = grpc_lane
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/test.Echo/Fail")(b"x", timeout=10)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await lane.picker.until_idle()


async def test_the_pickers_refusal_is_a_grpc_status(grpc_lane: tuple[Lane, str]) -> None:
    lane, address = grpc_lane
    await lane.renew([])
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/test.Echo/Unary")(b"x", timeout=10)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_many_grpc_calls_at_once(grpc_lane: tuple[Lane, str]) -> None:
    lane, address = grpc_lane
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary("/test.Echo/Unary")
        answers = await asyncio.gather(*(call(b"%d" % number, timeout=20) for number in range(100)))
    assert answers == [(b"%d" % number)[::-1] for number in range(100)]
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 100}
