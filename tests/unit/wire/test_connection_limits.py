"""What bounds a connection: limits, windows, silence, and the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
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
from poolpilot_picker.extproc.wire.errors import Code
from poolpilot_picker.extproc.wire.grpc_messages import OK_TRAILERS
from poolpilot_picker.extproc.wire.hpack import encode
from poolpilot_picker.extproc.wire.limits import Limits
from wire_peer import (
    GRPC,
    HELLO,
    Peer,
    Server,
    echo,
    failure,
    frames_of,
    headers,
    hello,
    raw,
    reset,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("both_cores")


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
