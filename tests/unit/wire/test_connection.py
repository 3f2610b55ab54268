"""A connection from its first byte to its last: streams, headers, faults, limits, silence and drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from h2.events import PingAckReceived, RemoteSettingsChanged
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.errors import Code, Status
from poolpilot_picker.extproc.wire.grpc_messages import HEADERS, OK_ONLY, OK_TRAILERS, trailers
from poolpilot_picker.extproc.wire.hpack import encode
from poolpilot_picker.extproc.wire.limits import Limits
from wire_peer import GRPC, Noted, Peer, Server, frames_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("both_cores")

BLOCK = encode([(name.encode(), value.encode()) for name, value in GRPC])
SETTINGS = SettingsFrame(0).serialize()
HELLO = frames.PREFACE + SETTINGS


def echo(call: Noted) -> None:
    """Answers every piece of data with a message, and its end with OK."""

    def answer(payload: bytes) -> None:
        if not call.stream.answered:
            call.connection.send_head(call.stream, HEADERS)
        call.send(payload)

    call.on_data = answer
    call.on_over = lambda: finish(call)


def finish(call: Noted) -> None:
    """OK, whether it is the first that is said or not."""
    call.connection.finish(call.stream, OK_TRAILERS if call.stream.answered else OK_ONLY)


def raw(server: Server, *parts: bytes | Frame) -> list[Frame]:
    """What the server says to these bytes, after its greeting."""
    for part in parts:
        server.connection.receive(part if isinstance(part, bytes) else part.serialize(), server.connection.now)
    return frames_of(server.connection.take())


def hello(server: Server) -> None:
    raw(server, HELLO, SettingsFrame(0, flags=["ACK"]))


def headers(stream_id: int, *flags: str, block: bytes = BLOCK, **more: object) -> HeadersFrame:
    return HeadersFrame(stream_id, block, flags=list(flags or ("END_HEADERS",)), **more)


def failure(said: list[Frame]) -> str:
    """The code of the GOAWAY that ends a connection."""
    away = said[-1]
    assert isinstance(away, GoAwayFrame), said
    return Code(away.error_code).name


def reset(said: list[Frame], stream_id: int = 1) -> str:
    """The code that a stream was reset with."""
    [code] = [one.error_code for one in said if isinstance(one, RstStreamFrame) and one.stream_id == stream_id]
    return Code(code).name


# ── in good order ────────────────────────────────────────────────────────────


def test_the_greeting() -> None:
    server = Server(Limits(max_streams=7, stream_window=70_000, connection_window=100_000))
    first, second = frames_of(server.connection.take())
    assert isinstance(first, SettingsFrame)
    assert first.settings == {1: 0, 3: 7, 4: 70_000, 6: 65_536}
    assert isinstance(second, WindowUpdateFrame)
    assert (second.stream_id, second.window_increment) == (0, 100_000 - 65_535)


def test_a_call() -> None:
    server = Server(begin=echo)
    peer = Peer(server)
    one = peer.open()
    peer.h2.send_data(one, b"hello")
    peer.exchange()
    assert peer.head(one) == {":status": "200", "content-type": "application/grpc"}
    assert peer.data(one) == b"\0\0\0\0\x05hello"
    call = server.calls[1]
    assert (call.section.path, call.closings) == (b"/a.Service/Method", 0)
    peer.h2.send_data(one, b"", end_stream=True)
    peer.exchange()
    assert peer.trailers(one) == {"grpc-status": "0"} and peer.ended(one)
    assert peer.reset_code(one) is None
    assert call.closings == 1 and not server.connection.streams


def test_an_answer_before_the_end_of_the_request_resets_what_is_left() -> None:
    """RFC 9113, section 8.1: NO_ERROR, behind the whole answer."""
    server = Server()
    peer = Peer(server)
    one = peer.open()
    peer.exchange()
    server.connection.finish(server.calls[1].stream, trailers(Status.UNAVAILABLE, "gone", only=True))
    assert server.calls[1].closings == 1
    peer.exchange()
    assert peer.head(one)["grpc-status"] == "14"
    assert peer.ended(one) and peer.reset_code(one) == Code.NO_ERROR
    said = raw(server, DataFrame(1, b"late"), headers(1, "END_HEADERS", "END_STREAM", block=b""), RstStreamFrame(1))
    assert said == [], "what was under way is ignored"


def test_requests_that_are_only_headers() -> None:
    server = Server(begin=echo)
    peer = Peer(server)
    ids = [peer.open(end=True) for _ in range(5)]
    peer.exchange()
    assert [peer.head(one)["grpc-status"] for one in ids] == ["0"] * 5
    assert all(map(peer.ended, ids))


def test_trailers_of_the_client_end_its_side() -> None:
    server = Server(begin=echo)
    peer = Peer(server)
    one = peer.open()
    peer.h2.send_headers(one, [("x-sum", "1")], end_stream=True)
    peer.exchange()
    assert server.calls[1].is_over and peer.ended(one)


def test_a_reset_by_the_client() -> None:
    server = Server(begin=echo)
    peer = Peer(server)
    one = peer.open()
    peer.exchange()
    peer.h2.reset_stream(one)
    peer.exchange()
    assert server.calls[1].closings == 1 and not server.connection.streams
    assert raw(server, RstStreamFrame(1), WindowUpdateFrame(1, window_increment=5)) == []


def test_pings_and_settings_are_acknowledged() -> None:
    server = Server()
    peer = Peer(server)
    peer.h2.ping(b"12345678")
    peer.h2.update_settings({4: 100_000})
    events = peer.exchange()
    assert any(isinstance(one, PingAckReceived) and one.ping_data == b"12345678" for one in events)
    assert any(isinstance(one, RemoteSettingsChanged) for one in events)
    assert server.connection.sender.initial_window == 100_000


def test_headers_in_many_pieces_and_with_padding() -> None:
    server = Server(begin=echo)
    hello(server)
    said = raw(
        server,
        HeadersFrame(1, BLOCK[:5], flags=["PADDED", "PRIORITY"], pad_length=9, depends_on=0, stream_weight=3),
        *(ContinuationFrame(1, BLOCK[at : at + 1]) for at in range(5, len(BLOCK) - 1)),
        ContinuationFrame(1, BLOCK[-1:], flags=["END_HEADERS"]),
        DataFrame(1, b"abc", flags=["PADDED", "END_STREAM"], pad_length=20),
    )
    assert server.calls[1].received == b"abc"
    assert [type(one) for one in said] == [HeadersFrame, DataFrame, HeadersFrame]


def test_priorities_and_unknown_frames_are_ignored() -> None:
    server = Server(begin=echo)
    hello(server)
    unknown = frames.frame(0xFA, 0xFF, 3, b"whatever")
    assert raw(server, PriorityFrame(5, depends_on=3, stream_weight=1), unknown, PriorityFrame(1, depends_on=1)) == []
    assert raw(server, headers(1, "END_HEADERS", "END_STREAM"))


def test_the_reserved_bit_is_ignored() -> None:
    server = Server(begin=echo)
    hello(server)
    data = bytearray(headers(1).serialize() + DataFrame(1, b"a", flags=["END_STREAM"]).serialize())
    data[5] |= 0x80
    data[len(headers(1).serialize()) + 5] |= 0x80
    raw(server, bytes(data))
    assert server.calls[1].received == b"a" and server.calls[1].is_over


def test_a_goaway_of_the_client_ends_nothing() -> None:
    server = Server(begin=echo)
    peer = Peer(server)
    one = peer.open()
    peer.exchange()
    raw(server, GoAwayFrame(0, last_stream_id=0))
    peer.h2.send_data(one, b"x", end_stream=True)
    peer.exchange()
    assert peer.ended(one)


def test_the_loss_of_a_connection_ends_its_calls() -> None:
    server = Server(begin=echo)
    peer = Peer(server)
    for _ in range(3):
        peer.open()
    peer.exchange()
    server.lost()
    server.lost()
    server.connection.receive(b"\0" * 100, 0.0)
    assert server.connection.take() == b""


# ── faults of the connection ─────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "PROTOCOL_ERROR"),
        (frames.PREFACE[:-1] + b"x", "PROTOCOL_ERROR"),
        (b"P" * 24, "PROTOCOL_ERROR"),
        (frames.PREFACE + PingFrame(0).serialize(), "PROTOCOL_ERROR"),
        (frames.PREFACE + DataFrame(1, b"x").serialize(), "PROTOCOL_ERROR"),
        (frames.PREFACE + SettingsFrame(0, flags=["ACK"]).serialize(), "PROTOCOL_ERROR"),
        (HELLO + frames.head(16_385, frames.DATA, 0, 1), "FRAME_SIZE_ERROR"),
        (HELLO + frames.frame(frames.SETTINGS, 0, 1), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.SETTINGS, 0, 0, b"12345"), "FRAME_SIZE_ERROR"),
        (HELLO + frames.frame(frames.SETTINGS, frames.ACK, 0, b"123456"), "FRAME_SIZE_ERROR"),
        (HELLO + frames.settings([(4, 2**31)]), "FLOW_CONTROL_ERROR"),
        (HELLO + frames.settings([(5, 16_383)]), "PROTOCOL_ERROR"),
        (HELLO + frames.settings([(5, 2**24)]), "PROTOCOL_ERROR"),
        (HELLO + frames.settings([(2, 2)]), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.PING, 0, 1, b"12345678"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.PING, 0, 0, b"1234567"), "FRAME_SIZE_ERROR"),
        (HELLO + frames.frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\x02"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.GOAWAY, 0, 1, b"12345678"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.GOAWAY, 0, 0, b"1234567"), "FRAME_SIZE_ERROR"),
        (HELLO + frames.frame(frames.RST_STREAM, 0, 0, b"1234"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.RST_STREAM, 0, 1, b"1234"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.RST_STREAM, 0, 1, b"123"), "FRAME_SIZE_ERROR"),
        (HELLO + frames.frame(frames.PRIORITY, 0, 0, b"12345"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.PRIORITY, 0, 1, b"1234"), "FRAME_SIZE_ERROR"),
        (HELLO + frames.window_update(0, 0), "PROTOCOL_ERROR"),
        (HELLO + frames.window_update(1, 1), "PROTOCOL_ERROR"),
        (HELLO + frames.window_update(0, 2**31 - 1), "FLOW_CONTROL_ERROR"),
        (HELLO + frames.frame(frames.WINDOW_UPDATE, 0, 0, b"123"), "FRAME_SIZE_ERROR"),
        (HELLO + DataFrame(1, b"x").serialize(), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.DATA, 0, 0, b"x"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.DATA, 0, 2, b"x"), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.HEADERS, 4, 0, BLOCK), "PROTOCOL_ERROR"),
        (HELLO + headers(2).serialize(), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.HEADERS, 4 | frames.PADDED, 1, b"\x0a" + b"x" * 9), "PROTOCOL_ERROR"),
        (HELLO + frames.frame(frames.HEADERS, 4 | frames.PRIORITIZED, 1, b"1234"), "FRAME_SIZE_ERROR"),
        (HELLO + headers(1, block=b"\xff").serialize(), "COMPRESSION_ERROR"),
        (HELLO + headers(3).serialize() + headers(1).serialize(), "PROTOCOL_ERROR"),
        (HELLO + headers(1, "END_STREAM").serialize() + PingFrame(0).serialize(), "PROTOCOL_ERROR"),
        (HELLO + headers(1, "END_STREAM").serialize() + frames.frame(0xFA, 0, 0), "PROTOCOL_ERROR"),
        (HELLO + headers(1, "END_STREAM").serialize() + ContinuationFrame(3, b"").serialize(), "PROTOCOL_ERROR"),
        (HELLO + ContinuationFrame(1, b"", flags=["END_HEADERS"]).serialize(), "PROTOCOL_ERROR"),
        (HELLO + headers(1).serialize() + frames.frame(frames.DATA, frames.PADDED, 1, b"\x01"), "PROTOCOL_ERROR"),
        (HELLO + headers(1).serialize() + RstStreamFrame(1).serialize() + headers(1).serialize(), "STREAM_CLOSED"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 3])
def test_faults(data: bytes, code: str, pieces: int) -> None:
    server = Server()
    server.connection.take()
    size = len(data) // pieces + 1
    said = raw(server, *(data[at : at + size] for at in range(0, len(data), size)))
    assert failure(said) == code
    assert not server.connection.open
    assert server.connection.failure is not None and server.connection.failure[1]
    assert [call.closings for call in server.calls.values()] == [1] * len(server.calls)
    assert raw(server, b"anything") == [], "nothing after the end"


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([headers(1, block=BLOCK + encode([(b"A", b"1")]))], "PROTOCOL_ERROR"),
        ([headers(1, block=encode([(b":method", b"GET")]))], "PROTOCOL_ERROR"),
        ([headers(1), headers(1)], "PROTOCOL_ERROR"),
        ([headers(1), headers(1, "END_HEADERS", "END_STREAM", block=BLOCK)], "PROTOCOL_ERROR"),
        ([headers(1), WindowUpdateFrame(1, window_increment=2**31 - 1)], "FLOW_CONTROL_ERROR"),
        ([headers(1), frames.window_update(1, 0)], "PROTOCOL_ERROR"),
        ([headers(1, "END_HEADERS", "END_STREAM"), DataFrame(1, b"x")], "STREAM_CLOSED"),
        ([headers(1, "END_HEADERS", "END_STREAM"), headers(1)], "STREAM_CLOSED"),
        ([headers(1), RstStreamFrame(1), DataFrame(1, b"x")], "STREAM_CLOSED"),
        ([headers(1, block=BLOCK + encode([(b"content-length", b"3")])), DataFrame(1, b"abcd")], "PROTOCOL_ERROR"),
        (
            [
                headers(1, block=BLOCK + encode([(b"content-length", b"3")])),
                DataFrame(1, b"ab"),
                DataFrame(1, b"", flags=["END_STREAM"]),
            ],
            "PROTOCOL_ERROR",
        ),
        (
            [headers(1, "END_HEADERS", "END_STREAM", block=BLOCK + encode([(b"content-length", b"3")]))],
            "PROTOCOL_ERROR",
        ),
    ],
)
def test_faults_of_one_stream(parts: list[Frame | bytes], code: str) -> None:
    server = Server()
    hello(server)
    assert reset(raw(server, *parts)) == code
    assert server.connection.open and not server.connection.streams
    assert [call.closings for call in server.calls.values()] == [1] * len(server.calls)
    assert raw(server, headers(3)) == [] and 3 in server.connection.streams, "the others live on"


def test_content_length_that_fits() -> None:
    server = Server(begin=echo)
    hello(server)
    block = BLOCK + encode([(b"content-length", b"3")])
    raw(server, headers(1, block=block), DataFrame(1, b"ab"), DataFrame(1, b"c", flags=["END_STREAM"]))
    assert server.calls[1].is_over


# ── limits ───────────────────────────────────────────────────────────────────


def test_streams_beyond_the_limit_are_refused() -> None:
    server = Server(Limits(max_streams=2))
    hello(server)
    said = raw(server, headers(1), headers(3), headers(5))
    assert reset(said, 5) == "REFUSED_STREAM"
    raw(server, RstStreamFrame(1))
    assert raw(server, headers(7)) == []
    assert list(server.connection.streams) == [3, 7]


def test_a_header_list_too_large() -> None:
    server = Server(Limits(max_header_list_bytes=500))
    peer = Peer(server)
    one = peer.open([*GRPC, ("x-long", "x" * 500)], end=True)
    two = peer.open(end=True)
    peer.exchange()
    assert peer.head(one)[":status"] == "431" and peer.head(one)["grpc-status"] == "8"
    assert list(server.calls) == [two]


def test_a_header_block_too_large() -> None:
    server = Server(Limits(max_header_block_bytes=20_000))
    hello(server)
    start = headers(1, "END_STREAM", block=b"\0" * 10_000)
    assert raw(server, start, ContinuationFrame(1, b"\0" * 10_000)) == []
    assert failure(raw(server, ContinuationFrame(1, b"\0"))) == "ENHANCE_YOUR_CALM"


def test_too_many_pieces_of_a_header_block() -> None:
    server = Server(Limits(max_header_frames=10))
    hello(server)
    raw(server, headers(1, "END_STREAM", block=b""), *(ContinuationFrame(1, b"") for _ in range(9)))
    assert server.connection.open
    assert failure(raw(server, ContinuationFrame(1, b""))) == "ENHANCE_YOUR_CALM"


@pytest.mark.parametrize(
    "frame",
    [
        PingFrame(0),
        PingFrame(0, flags=["ACK"]),
        SettingsFrame(0),
        SettingsFrame(0, flags=["ACK"]),
        DataFrame(1, b""),
        frames.frame(frames.DATA, frames.PADDED, 1, b"\x03\0\0\0"),
        PriorityFrame(1, depends_on=3),
        GoAwayFrame(0),
        frames.frame(0xFA, 0, 0),
    ],
)
def test_floods(frame: Frame | bytes) -> None:
    server = Server(Limits(oddities=50.0, oddities_per_s=10.0, pings=50.0, pings_per_s=10.0))
    hello(server)
    raw(server, headers(1))
    raw(server, *[frame] * 40)
    assert server.connection.open
    server.connection.now = 60_000.0
    raw(server, *[frame] * 45)
    assert server.connection.open, "time forgives"
    assert failure(raw(server, *[frame] * 10)) == "ENHANCE_YOUR_CALM"


def test_streams_that_are_malformed_in_a_row() -> None:
    server = Server(Limits(oddities=50.0, oddities_per_s=10.0))
    hello(server)
    bad = encode([(b":method", b"GET")])
    said = raw(server, *(headers(number, block=bad) for number in range(1, 121, 2)))
    assert failure(said) == "ENHANCE_YOUR_CALM"


def test_streams_that_are_opened_and_reset() -> None:
    """Rapid reset: only what was not answered counts, so that a data plane that resets at the end goes free."""
    server = Server(Limits(early_resets=20.0, early_resets_per_s=1.0), echo)
    hello(server)
    for number in range(1, 200, 2):
        raw(server, headers(number), DataFrame(number, b"x"), RstStreamFrame(number))
    assert server.connection.open
    said = [frame for number in range(201, 251, 2) for frame in raw(server, headers(number), RstStreamFrame(number))]
    assert failure(said) == "ENHANCE_YOUR_CALM"
    assert all(call.closings == 1 for call in server.calls.values())


def test_what_the_peer_may_not_do_for_free_is_not_remembered_for_ever() -> None:
    server = Server()
    hello(server)
    for number in range(1, 6_001, 2):
        raw(server, headers(number))
        server.connection.finish(server.connection.streams[number], OK_TRAILERS)
        server.connection.take()
    assert len(server.connection._reset) <= 1_024
    assert len(server.connection.ended) <= 1_024
    assert failure(raw(server, headers(1))) == "PROTOCOL_ERROR"


def test_others_have_their_turn() -> None:
    server = Server(Limits(frames_at_once=10), echo)
    peer = Peer(server)
    one = peer.open()
    for _ in range(35):
        peer.h2.send_data(one, b"x")
    data = peer.h2.data_to_send()
    turns = 0
    server.connection.receive(data[:-3], 0.0)
    while server.connection.more:
        turns += 1
        assert turns < 10
        server.connection.receive(b"", 0.0)
    assert turns == 3
    server.connection.receive(data[-3:], 0.0)
    assert server.calls[1].received == b"x" * 35


# ── windows for what comes in ────────────────────────────────────────────────


def test_windows_are_filled_again() -> None:
    limits = Limits(stream_window=100_000, connection_window=150_000)
    server = Server(limits)
    peer = Peer(server)
    one = peer.open()
    peer.exchange()
    for _ in range(100):
        peer.h2.send_data(one, b"x" * 16_000)
        peer.exchange()
    assert len(server.calls[1].received) == 1_600_000


def test_more_than_the_stream_window() -> None:
    server = Server(Limits(stream_window=20_000, max_stream_backlog=0))
    hello(server)
    raw(server, headers(1))
    server.connection.streams[1].queued = 1  # as if replies waited
    said = raw(server, *(DataFrame(1, b"x" * 10_000) for _ in range(2)))
    assert said == []
    server.connection.streams[1].queued = 0
    assert reset(raw(server, DataFrame(1, b"x"))) == "FLOW_CONTROL_ERROR"


def test_padding_counts() -> None:
    server = Server(Limits(stream_window=1_000, max_stream_backlog=0))
    hello(server)
    raw(server, headers(1))
    server.connection.streams[1].queued = 1
    frame = DataFrame(1, b"x", flags=["PADDED"], pad_length=255)
    assert raw(server, *[frame] * 3) == []
    server.connection.streams[1].queued = 0
    assert reset(raw(server, frame)) == "FLOW_CONTROL_ERROR"


def test_more_than_the_connection_window() -> None:
    server = Server(Limits(connection_window=65_535, stream_window=1_000_000))
    hello(server)
    raw(server, headers(1))
    server.connection._receiver._credit = 10
    assert failure(raw(server, DataFrame(1, b"x" * 11))) == "FLOW_CONTROL_ERROR"


def test_data_for_streams_that_are_gone_fills_the_connection_window_again() -> None:
    server = Server(Limits(connection_window=100_000))
    hello(server)
    raw(server, headers(1))
    server.connection.finish(server.connection.streams[1], OK_TRAILERS)
    server.connection.take()
    said = [frame for _ in range(20) for frame in raw(server, DataFrame(1, b"x" * 10_000))]
    assert {type(frame) for frame in said} == {WindowUpdateFrame}
    assert {frame.stream_id for frame in said} == {0}


def test_a_stream_whose_replies_wait_gets_no_more_window() -> None:
    """Back-pressure: what comes in turns into what goes out, and the peer takes nothing."""
    server = Server(Limits(stream_window=100_000, max_stream_backlog=10_000), echo)
    peer = Peer(server, settings={4: 1_000})
    one = peer.open()
    peer.exchange()
    sent = 0
    while (room := peer.h2.local_flow_control_window(one)) > 0:
        size = min(room, 5_000)
        peer.h2.send_data(one, b"x" * size)
        sent += size
        peer.exchange()
        assert sent < 500_000
    stream = server.connection.streams[1]
    assert 10_000 < stream.queued < 200_000
    assert server.held.bytes == stream.queued
    peer.h2.increment_flow_control_window(10_000_000, one)
    peer.h2.increment_flow_control_window(10_000_000)
    peer.exchange()
    assert peer.h2.local_flow_control_window(one) > 50_000, "and now it goes on"
    assert server.held.bytes == 0 and stream.queue is None
    peer.h2.end_stream(one)
    peer.exchange()
    assert peer.ended(one)


def test_a_stream_stalled_by_the_connection_window_goes_on() -> None:
    server = Server(Limits(stream_window=100_000, max_stream_backlog=10_000), echo)
    peer = Peer(server, settings={4: 10_000_000})
    one = peer.open()
    peer.exchange()
    while (room := peer.h2.local_flow_control_window(one)) > 0:
        peer.h2.send_data(one, b"x" * min(room, 5_000))
        peer.exchange()
    assert server.connection.sender.window == 0
    peer.h2.increment_flow_control_window(10_000_000)
    peer.exchange()
    assert peer.h2.local_flow_control_window(one) > 50_000


# ── time ─────────────────────────────────────────────────────────────────────

QUICK = Limits(
    handshake_ms=100.0,
    settings_ack_ms=300.0,
    keepalive_ms=1_000.0,
    keepalive_timeout_ms=200.0,
    idle_ms=50_000.0,
    goaway_ms=100.0,
)


def tick(server: Server, now: float, **more: float) -> list[Frame]:
    server.connection.tick(now, **more)
    return frames_of(server.connection.take())


def test_a_client_that_says_nothing() -> None:
    server = Server(QUICK)
    server.connection.take()
    assert tick(server, 99.0) == []
    assert failure(tick(server, 101.0)) == "SETTINGS_TIMEOUT"


def test_a_client_that_does_not_acknowledge_settings() -> None:
    server = Server(QUICK)
    server.connection.take()
    raw(server, HELLO)
    assert tick(server, 299.0) == []
    assert failure(tick(server, 301.0)) == "SETTINGS_TIMEOUT"


@pytest.mark.parametrize("answer", [PingFrame(0, b"alive?\0\0", flags=["ACK"]), headers(1)])
def test_a_silent_client_is_asked(answer: Frame) -> None:
    server = Server(QUICK)
    hello(server)
    assert tick(server, 999.0) == []
    [ping] = tick(server, 1_001.0)
    assert isinstance(ping, PingFrame) and not ping.flags
    assert tick(server, 1_150.0) == [], "asked once"
    server.connection.receive(answer.serialize(), 1_200.0)
    assert tick(server, 1_300.0) == [] and server.connection.open
    assert tick(server, 2_201.0) != [], "and again after the next silence"


def test_a_client_that_has_vanished() -> None:
    server = Server(QUICK)
    hello(server)
    raw(server, headers(1))
    tick(server, 1_001.0)
    tick(server, 1_200.0)
    assert not server.connection.dead
    tick(server, 1_202.0)
    assert server.connection.dead and server.calls[1].closings == 1


def test_a_client_that_takes_nothing() -> None:
    server = Server(QUICK)
    hello(server)
    raw(server, headers(1))
    assert tick(server, 5_000.0, stalled_ms=150.0) == [], "nothing is read meanwhile, so nothing is asked"
    assert not server.connection.dead
    tick(server, 5_100.0, stalled_ms=201.0)
    assert server.connection.dead and server.calls[1].closings == 1


def test_a_connection_without_streams_is_closed_in_good_order() -> None:
    server = Server(QUICK, echo)
    hello(server)
    raw(server, headers(1, "END_HEADERS", "END_STREAM"))
    for now in range(0, 50_000, 900):
        server.connection.receive(b"", float(now))
        assert tick(server, float(now)) == []
    server.connection.receive(b"", 50_001.0)
    said = tick(server, 50_001.0)
    assert away(said) == [(2**31 - 1, 0)]
    assert away(raw(server, PingFrame(0, said[-1].opaque_data, flags=["ACK"]))) == [(1, 0)]
    assert not server.connection.open and server.connection.failure is None


# ── the end ──────────────────────────────────────────────────────────────────


def away(said: list[Frame]) -> list[tuple[int, int]]:
    return [(one.last_stream_id, one.error_code) for one in said if isinstance(one, GoAwayFrame)]


def test_a_drain_takes_what_was_under_way() -> None:
    """RFC 9113, section 6.8: announced with the largest number, then said with the last."""
    server = Server(begin=echo)
    hello(server)
    raw(server, headers(1))
    server.connection.go_away(0.0)
    server.connection.go_away(0.0)
    said = frames_of(server.connection.take())
    assert away(said) == [(2**31 - 1, 0)] and isinstance(said[-1], PingFrame)
    assert raw(server, headers(3)) == [] and 3 in server.connection.streams
    assert not server.connection.refusing
    assert away(raw(server, PingFrame(0, said[-1].opaque_data, flags=["ACK"]))) == [(3, 0)]
    assert server.connection.refusing
    assert reset(raw(server, headers(5)), 5) == "REFUSED_STREAM"
    raw(server, DataFrame(1, b"", flags=["END_STREAM"]))
    assert server.connection.open
    said = raw(server, DataFrame(3, b"x", flags=["END_STREAM"]))
    assert [type(one) for one in said] == [HeadersFrame, DataFrame, HeadersFrame]
    assert not server.connection.open, "nothing is left"


def test_a_drain_does_not_wait_for_a_silent_peer() -> None:
    server = Server(QUICK)
    hello(server)
    raw(server, headers(1))
    server.connection.go_away(0.0)
    server.connection.take()
    assert tick(server, 99.0) == []
    assert away(tick(server, 101.0)) == [(1, 0)]


def test_a_drain_of_an_idle_connection() -> None:
    server = Server()
    hello(server)
    server.connection.go_away(0.0)
    said = frames_of(server.connection.take())
    raw(server, PingFrame(0, said[-1].opaque_data, flags=["ACK"]))
    assert not server.connection.open


def test_answers_in_plain_http() -> None:
    server = Server()
    peer = Peer(server, settings={4: 10})
    one = peer.open(end=True)
    peer.exchange()
    block = encode([(b":status", b"415"), (b"content-length", b"100")])
    server.connection.respond(server.connection.streams[one], block, b"x" * 100)
    peer.exchange()
    assert peer.data(one) == b"x" * 10 and not peer.ended(one)
    peer.h2.increment_flow_control_window(1_000, one)
    peer.exchange()
    assert peer.data(one) == b"x" * 100 and peer.ended(one)
    two = peer.open(end=True)
    peer.exchange()
    server.connection.respond(server.connection.streams[two], encode([(b":status", b"405")]))
    peer.exchange()
    assert peer.head(two) == {":status": "405"} and peer.ended(two)


@pytest.mark.parametrize("act", ["finish", "respond", "data"])
def test_nothing_is_sent_on_a_stream_that_is_gone(act: str) -> None:
    server = Server()
    hello(server)
    raw(server, headers(1))
    stream = server.connection.streams[1]
    raw(server, RstStreamFrame(1))
    acts: dict[str, Callable[[], None]] = {
        "finish": lambda: server.connection.finish(stream, OK_TRAILERS),
        "respond": lambda: server.connection.respond(stream, OK_TRAILERS),
        "data": lambda: server.connection.respond(stream, OK_TRAILERS, b"x"),
    }
    acts[act]()
    assert server.connection.take() == b""


def test_a_listener_that_holds_too_much_resets_the_stream_that_would_add() -> None:
    server = Server(Limits(max_held_bytes=5_000), echo)
    peer = Peer(server, settings={4: 0})
    one, two = peer.open(), peer.open()
    peer.h2.send_data(one, b"x" * 4_000)
    peer.h2.send_data(two, b"x" * 4_000)
    peer.exchange()
    assert peer.reset_code(one) is None and peer.reset_code(two) == Code.ENHANCE_YOUR_CALM
    assert server.calls[two].closings == 1
    server.lost()


def test_messages_are_cut_into_frames_that_the_peer_takes() -> None:
    server = Server()
    hello(server)
    raw(server, frames.window_update(0, 10_000_000), frames.settings([(4, 10_000_000)]), headers(1))

    def sizes(body: bytes) -> list[int]:
        server.calls[1].send(b"head", body)
        return [one.body_len for one in frames_of(server.connection.take())]

    assert sizes(b"x" * 16_375) == [16_384]
    assert sizes(b"x" * 16_376) == [16_384, 1]
    assert sizes(b"x" * 40_000) == [16_384, 16_384, 7_241]
    raw(server, frames.settings([(5, 20_000)]))
    assert sizes(b"x" * 40_000) == [20_000, 20_000, 9]
