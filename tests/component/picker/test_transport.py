"""Each transport with a real client: exchanges over the wire, health, limits, TLS, resets and the way it stops."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from h2.events import RemoteSettingsChanged
from hyperframe.frame import Frame, HeadersFrame, PingFrame
from prometheus_client import CollectorRegistry

from exchange_desk import ADDRESSES, Chosen, spec_of
from extproc_client import BUFFERED, DUPLEX, NONE, SERVICE, STREAMED, WAIT_S, DataPlane, Stream, chat, destination
from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.certificates import Certificates, TlsFiles
from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.extproc.grpc_transport import GrpcTransport
from poolpilot_picker.extproc.listener import ListenerSettings
from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.transport import WireTransport
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.instruments.metrics import PickerMetrics
from wire_server import Raw, prefixed, request_head

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TLS = Path(__file__).parents[2] / "data/tls"
LIST = ",".join(ADDRESSES)


class Picker:
    """A transport on a small pool."""

    kind: type[GrpcTransport | WireTransport]
    """Set for each test by `transport`."""

    def __init__(self, settings: ListenerSettings | None = None) -> None:
        self.metrics = PickerMetrics(CollectorRegistry())
        self.policy = Chosen()
        self.pool = Pool("pool", self.policy, random.Random(1))
        self.pool.apply_endpoints([spec_of(address) for address in ADDRESSES])
        self.transport = self.kind(
            settings or ListenerSettings(address="127.0.0.1:0"),
            lambda: Exchange(self.pool, self.metrics, ExchangeSettings()),
            lambda: time.monotonic() * 1000.0,
            health_services=("pool",),
        )

    async def start(self) -> Picker:
        await self.transport.start()
        await self.transport.set_serving(serving=True)
        return self

    def plane(self, credentials: grpc.ChannelCredentials | None = None) -> DataPlane:
        return DataPlane(self.transport.port, credentials)

    def booked(self) -> int:
        return int(self.pool.table.requests.sum())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def settled(self) -> None:
        """No stream is open, no booking is left."""
        await self.until(lambda: self.transport.streams == 0)
        assert self.booked() == 0 and len(self.pool.ledger) == 0


@pytest.fixture(autouse=True, params=[GrpcTransport, WireTransport], ids=["grpc", "wire"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs over both."""
    monkeypatch.setattr(Picker, "kind", request.param, raising=False)


@pytest.fixture
async def picker() -> AsyncIterator[Picker]:
    picker = await Picker().start()
    yield picker
    await picker.transport.drain(0)
    await picker.settled()


@pytest.fixture
async def plane(picker: Picker) -> AsyncIterator[DataPlane]:
    async with picker.plane() as plane:
        yield plane


# ── exchanges ────────────────────────────────────────────────────────────────


async def test_a_held_body(picker: Picker, plane: DataPlane) -> None:
    stream = plane.open(BUFFERED, NONE)
    await stream.headers(x_prefiller_host_port="6.6.6.6:1")
    head = await stream.must_read()
    assert head.WhichOneof("response") == "request_headers" and destination(head) == ""
    await stream.body(chat())
    body = await stream.must_read()
    assert destination(body) == LIST
    assert list(body.request_body.response.header_mutation.remove_headers) == ["x-prefiller-host-port"]
    assert picker.booked() == 1
    await stream.answer(ADDRESSES[1])
    assert (await stream.must_read()).WhichOneof("response") == "response_headers"
    assert [int(count) for count in picker.pool.table.requests] == [0, 1, 0], "moved to the one that served"
    await stream.done()
    await picker.settled()
    assert picker.transport.ended == {"OK": 1}


@pytest.mark.parametrize("modes", [None, DUPLEX])
async def test_full_duplex(picker: Picker, plane: DataPlane, modes: int | None) -> None:
    body = chat("word " * 50_000)
    stream = plane.open(modes, DUPLEX)
    await stream.headers(content_length=str(len(body)))
    for start in range(0, len(body), 16_384):
        await stream.body(body[start : start + 16_384], end=False)
    await stream.body(b"")
    head = await stream.must_read()
    assert destination(head) == LIST
    passed = b""
    while True:
        chunk = (await stream.must_read()).request_body.response.body_mutation.streamed_response
        passed += chunk.body
        if chunk.end_of_stream:
            break
    assert passed == body
    await stream.answer(ADDRESSES[0])
    await stream.must_read()
    await stream.answer_body(b"answer", end=True)
    chunk = (await stream.must_read()).response_body.response.body_mutation.streamed_response
    assert (chunk.body, chunk.end_of_stream) == (b"answer", True)
    await stream.done()
    await picker.settled()


async def test_five_megabytes_in_one_message(picker: Picker, plane: DataPlane) -> None:
    stream = plane.open()
    await stream.headers()
    await stream.must_read()
    await stream.body(chat("x" * 5 * 2**20))
    assert destination(await stream.must_read()) == LIST
    await stream.done()


async def test_a_refusal(picker: Picker, plane: DataPlane) -> None:
    stream = plane.open()
    await stream.headers()
    await stream.must_read()
    await stream.body(b"{")
    reply = await stream.must_read()
    assert reply.immediate_response.status.code == 400
    await stream.done()


async def test_many_at_once(picker: Picker, plane: DataPlane) -> None:
    async def one() -> str:
        stream = plane.open()
        place = await stream.place()
        await stream.answer(place.split(",")[0])
        await stream.must_read()
        await stream.done()
        return place

    assert set(await asyncio.gather(*(one() for _ in range(100)))) == {LIST}
    await picker.settled()


@pytest.mark.parametrize("after", ["headers", "body", "answer", "chunk"])
async def test_a_reset_releases(picker: Picker, plane: DataPlane, after: str) -> None:
    stream = plane.open(BUFFERED, STREAMED)
    await stream.headers()
    await stream.must_read()
    if after != "headers":
        await stream.body(chat())
        await stream.must_read()
        assert picker.booked() == 1
    if after in ("answer", "chunk"):
        await stream.answer(ADDRESSES[0])
        await stream.must_read()
    if after == "chunk":
        await stream.answer_body(b"x")
        await stream.must_read()
    stream.reset()
    await picker.settled()


async def test_a_connection_that_vanishes_releases(picker: Picker) -> None:
    async with picker.plane() as plane:
        streams = [plane.open() for _ in range(5)]
        for stream in streams:
            await stream.place()
        assert picker.booked() == 5
    await picker.settled()


async def test_observability_mode_places_nothing(picker: Picker, plane: DataPlane) -> None:
    """Nobody reads our answers there."""
    stream = plane.open(None)
    message = ext_proc.ProcessingRequest(observability_mode=True)
    message.request_headers.end_of_stream = True
    await stream.send(message)
    await stream.done()
    assert picker.policy.calls == 0


async def test_a_message_above_the_receive_limit(caplog: pytest.LogCaptureFixture) -> None:
    small = await Picker(ListenerSettings(address="127.0.0.1:0", max_receive_bytes=100_000)).start()
    async with small.plane() as plane:
        stream = plane.open()
        await stream.headers()
        await stream.must_read()
        await stream.body(chat("x" * 200_000))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await small.settled()
        other = plane.open()
        assert await other.place() == LIST, "the others live on"
        await other.done()
    await small.transport.drain(0)
    assert caplog.records == []


async def test_bytes_that_are_no_message(picker: Picker, plane: DataPlane, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        call = plane.raw()
        await call.write(b"\xff\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
    await picker.settled()
    assert picker.transport.ended == {"Internal": 3}
    assert [record.message for record in caplog.records] == ["a stream failed"], "said once a minute"


async def test_a_fault_of_ours_ends_the_stream_with_an_error_and_releases(
    picker: Picker, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = plane.open()
    await stream.place()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Exchange, "response_headers", broken)
    await stream.answer(ADDRESSES[0])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    await picker.settled()


# ── health ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("service", ["", SERVICE, "pool"])
async def test_health(picker: Picker, plane: DataPlane, service: str) -> None:
    assert await plane.health(service) == "SERVING"
    await picker.transport.set_serving(serving=False)
    assert await plane.health(service) == "NOT_SERVING"


async def test_health_of_a_service_nobody_knows(plane: DataPlane) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plane.health("another-pool")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_not_serving_before_it_is_told() -> None:
    picker = Picker()
    await picker.transport.start()
    async with picker.plane() as plane:
        assert await plane.health() == "NOT_SERVING"
    await picker.transport.drain(0)


# ── ports and TLS ────────────────────────────────────────────────────────────


async def test_a_taken_port_is_an_error(picker: Picker) -> None:
    address = f"127.0.0.1:{picker.transport.port}"
    second = Picker(ListenerSettings(address=address))
    with pytest.raises(StartError, match=rf"cannot listen on {address} for ext_proc: the port is taken"):
        await second.transport.start()
    await second.transport.drain(0)


async def test_ipv6_and_ipv4_on_the_wildcard() -> None:
    picker = await Picker(ListenerSettings(address="[::]:0")).start()
    for host in ("127.0.0.1", "[::1]"):
        async with DataPlane(picker.transport.port, host=host) as plane:
            assert await plane.health() == "SERVING"
    await picker.transport.drain(0)


def certificates(*, mutual: bool = False) -> Certificates:
    files = TlsFiles(
        certificate=(TLS / "server.crt").read_bytes(),
        key=(TLS / "server.key").read_bytes(),
        client_ca=(TLS / "ca.crt").read_bytes() if mutual else None,
    )
    return Certificates(files)


async def test_tls() -> None:
    picker = await Picker(ListenerSettings(address="127.0.0.1:0", tls=certificates())).start()
    trusting = grpc.ssl_channel_credentials((TLS / "ca.crt").read_bytes())
    async with picker.plane(trusting) as plane:
        stream = plane.open()
        assert await stream.place() == LIST
        await stream.done()
    async with picker.plane() as plaintext:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await plaintext.health()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await picker.transport.drain(0)


async def test_tls_with_client_certificates() -> None:
    picker = await Picker(ListenerSettings(address="127.0.0.1:0", tls=certificates(mutual=True))).start()
    ca = (TLS / "ca.crt").read_bytes()
    known = grpc.ssl_channel_credentials(ca, (TLS / "client.key").read_bytes(), (TLS / "client.crt").read_bytes())
    async with picker.plane(known) as plane:
        assert await plane.health() == "SERVING"
    async with picker.plane(grpc.ssl_channel_credentials(ca)) as stranger:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stranger.health()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await picker.transport.drain(0)


# ── stopping ─────────────────────────────────────────────────────────────────


async def test_streams_in_flight_finish(picker: Picker, plane: DataPlane) -> None:
    waiting, answering = plane.open(), plane.open()
    await waiting.headers()
    await waiting.must_read()
    await answering.place()
    drain = asyncio.ensure_future(picker.transport.drain(WAIT_S))
    await asyncio.sleep(0.05)
    assert not drain.done()
    await waiting.body(chat())
    assert destination(await waiting.must_read()) == LIST, "a stream in flight is still placed"
    for stream in (waiting, answering):
        await stream.answer(ADDRESSES[0])
        await stream.must_read()
        await stream.done()
    await asyncio.wait_for(drain, WAIT_S)
    await picker.settled()
    assert picker.transport.ended == {"OK": 2}


async def test_new_streams_are_refused(picker: Picker, plane: DataPlane) -> None:
    open_one = plane.open()
    await open_one.place()
    drain = asyncio.ensure_future(picker.transport.drain(WAIT_S))
    await asyncio.sleep(0.05)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plane.open().place()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await open_one.done()
    await asyncio.wait_for(drain, WAIT_S)


async def test_a_watch_on_health_hears_of_it_and_delays_nothing(picker: Picker, plane: DataPlane) -> None:
    watch = plane.watch()
    assert (await watch.read()).status == 1
    before = time.monotonic()
    drain = asyncio.ensure_future(picker.transport.drain(60.0))
    assert (await asyncio.wait_for(watch.read(), WAIT_S)).status == 2
    await asyncio.wait_for(drain, WAIT_S)
    assert time.monotonic() - before < 30.0, "no stream of ours was open"


async def ended_by(stream: Stream) -> str:
    """What the picker says when it ends a stream: "OK", "503" or a code's name."""
    try:
        reply = await stream.read()
        if reply is None:
            return "OK"
        assert reply.immediate_response.status.code == 503, reply
        assert await stream.read() is None
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "503"


async def in_situation(plane: DataPlane, situation: str) -> Stream:
    """A stream in the middle of something."""
    duplex = situation.startswith("duplex")
    if situation == "silent":
        stream = plane.open()
        await stream.headers("/v1/models", end=True)
        await stream.must_read()
        return stream
    stream = plane.open(DUPLEX if duplex else BUFFERED, DUPLEX if duplex else NONE)
    if situation == "local reply first":
        await stream.answer("", "403", details="rbac_access_denied_matched_policy[none]")
        await stream.must_read()
        return stream
    await stream.headers("/upload" if situation == "upload" else "/v1/chat/completions")
    if not duplex:
        await stream.must_read()
    if situation in ("waiting for the body", "upload", "duplex, waiting for the body"):
        if duplex:
            await stream.body(chat()[:10], end=False)
        return stream
    await stream.body(chat())
    await stream.must_read()
    if duplex:
        await stream.must_read()
    if situation in ("placed", "duplex, placed"):
        return stream
    await stream.answer(ADDRESSES[0])
    await stream.must_read()
    if situation == "duplex, answering":
        await stream.answer_body(b"x")
        await stream.must_read()
    return stream


@pytest.mark.parametrize(
    ("situation", "end"),
    [
        ("waiting for the body", "503"),
        ("upload", "503"),
        ("duplex, waiting for the body", "503"),
        ("silent", "OK"),
        ("placed", "OK"),
        ("answering", "OK"),
        ("local reply first", "OK"),
        ("duplex, placed", "UNAVAILABLE"),
        ("duplex, answering", "UNAVAILABLE"),
    ],
)
async def test_the_end_of_the_grace(picker: Picker, plane: DataPlane, situation: str, end: str) -> None:
    """Never OK before the pick, never OK in the middle of a full duplex body: requests would go on empty or cut off."""
    stream = await in_situation(plane, situation)
    drain = asyncio.ensure_future(picker.transport.drain(0.05))
    assert await ended_by(stream) == end
    await asyncio.wait_for(drain, WAIT_S)
    await picker.settled()


async def test_a_stream_without_a_message_ends_in_an_error(picker: Picker, plane: DataPlane) -> None:
    """Its headers may be on their way."""
    call = plane.raw()
    await call.write(b"")  # an empty message, so that the stream is open at the other side
    await picker.until(lambda: picker.transport.streams == 1)
    drain = asyncio.ensure_future(picker.transport.drain(0.05))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(drain, WAIT_S)


async def test_hurry_ends_the_grace(picker: Picker, plane: DataPlane) -> None:
    stream = await in_situation(plane, "placed")
    drain = asyncio.ensure_future(picker.transport.drain(600.0))
    await asyncio.sleep(0.05)
    assert not drain.done()
    picker.transport.hurry()
    assert await ended_by(stream) == "OK"
    await asyncio.wait_for(drain, WAIT_S)
    await picker.settled()


async def test_a_client_that_reads_nothing_cannot_hold_up_the_end(picker: Picker, plane: DataPlane) -> None:
    """Answers that nobody takes fill the flow-control window: such a stream is cut."""
    stream = plane.open(DUPLEX, DUPLEX)
    await stream.headers("/service/Method", content_type="application/grpc")

    async def flood() -> None:
        while True:
            await stream._call.write(_big())

    def _big() -> ext_proc.ProcessingRequest:
        message = ext_proc.ProcessingRequest()
        message.request_body.body = b"x" * 1_000_000
        return message

    writing = asyncio.ensure_future(flood())
    await picker.until(lambda: picker.booked() == 1)
    await asyncio.sleep(0.3)
    await asyncio.wait_for(picker.transport.drain(0.05), WAIT_S)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    stream.reset()
    await picker.settled()


async def test_what_is_under_way_at_the_end_resets_no_connection(picker: Picker) -> None:
    """A proxy whose connection is reset forgets the statuses that it has not read yet, and cuts its answers off."""
    client = Raw(*await asyncio.open_connection("127.0.0.1", picker.transport.port)).greet()
    await client.until(RemoteSettingsChanged)
    message = ext_proc.ProcessingRequest()
    message.request_headers.end_of_stream = True
    message.protocol_config.request_body_mode = BUFFERED
    numbers = (1, 3, 5)
    for number in numbers:
        client.h2.send_headers(number, request_head())
        client.h2.send_data(number, prefixed(message.SerializeToString()))
    client.flush()
    await picker.until(lambda: picker.booked() == len(numbers))
    drain = asyncio.ensure_future(picker.transport.drain(0.05))
    ends = 0
    # By hand: for the h2 client a GOAWAY is the end of everything.
    while frame := await next_frame(client.reader):
        if isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            client.writer.write(PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize())
        if not isinstance(frame, HeadersFrame) or "END_STREAM" not in frame.flags:
            continue
        ends += 1
        # Their answers end just now, so the proxy has nothing more to say on these streams; one write for each.
        for number in numbers if ends == 1 else ():
            client.writer.write(frames.frame(frames.DATA, frames.END_STREAM, number))
    assert ends == len(numbers)
    client.writer.close()
    await asyncio.wait_for(client.writer.wait_closed(), WAIT_S)
    await asyncio.wait_for(drain, WAIT_S)
    await picker.settled()
    assert picker.transport.ended == {"OK": len(numbers)}


async def next_frame(reader: asyncio.StreamReader) -> Frame | None:
    """None at the end of the connection; raises ConnectionError where it is no orderly one."""
    try:
        head = await asyncio.wait_for(reader.readexactly(9), WAIT_S)
    except asyncio.IncompleteReadError:
        return None
    frame, length = Frame.parse_frame_header(memoryview(head))
    frame.parse_body(memoryview(await asyncio.wait_for(reader.readexactly(length), WAIT_S)))
    return frame


async def test_draining_twice(picker: Picker) -> None:
    await picker.transport.drain(0)
    await picker.transport.drain(0)
