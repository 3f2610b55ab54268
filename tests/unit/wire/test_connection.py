"""A connection in good order and in bad: streams, headers, and the faults that end one of them or all."""

from __future__ import annotations

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
from poolpilot_picker.extproc.wire.grpc_messages import trailers
from poolpilot_picker.extproc.wire.hpack import encode
from poolpilot_picker.extproc.wire.limits import Limits
from wire_peer import (
    BLOCK,
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

pytestmark = pytest.mark.usefixtures("both_cores")


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
