"""Whatever a peer sends, and however it is cut: rules are kept, nothing hangs, nothing is held for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.grpc_messages import HEADERS, OK_ONLY, OK_TRAILERS
from poolpilot_picker.extproc.wire.hpack import encode
from poolpilot_picker.extproc.wire.limits import Limits
from wire_peer import BLOCK, Noted, Peer, Server, frames_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hyperframe.frame import Frame

pytestmark = pytest.mark.usefixtures("both_cores")

SMALL = Limits(
    max_streams=4,
    stream_window=3_000,
    connection_window=70_000,
    max_stream_backlog=500,
    max_header_list_bytes=300,
    max_header_block_bytes=400,
    max_header_frames=5,
    max_held_bytes=20_000,
    frames_at_once=7,
    oddities=20.0,
    early_resets=5.0,
)


def answering(size: int) -> Callable[[Noted], None]:
    """Calls that answer every piece of data with a message of `size` times its bytes."""

    def begin(call: Noted) -> None:
        def answer(payload: bytes) -> None:
            if not call.stream.answered and call.stream.ending is None:
                call.connection.send_head(call.stream, HEADERS)
            call.send(payload * size, payload)

        def over() -> None:
            call.connection.finish(call.stream, OK_TRAILERS if call.stream.answered else OK_ONLY)

        call.on_data, call.on_over = answer, over

    return begin


# ── an independent client: it raises when a window is overdrawn, a frame too large or out of place ───────────────────

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("send"), st.integers(0, 3), st.integers(0, 900), st.booleans()),
        st.tuples(st.just("reset"), st.integers(0, 3)),
        st.tuples(st.just("window"), st.integers(-1, 3), st.integers(1, 5_000)),
        st.tuples(st.just("initial window"), st.integers(0, 4_000)),
        st.tuples(st.just("frame size"), st.integers(16_384, 20_000)),
        st.tuples(st.just("ping")),
    ),
    max_size=40,
)


class Client:
    """Takes steps within the rules."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._sending: dict[int, bool] = {}

    def take(self, what: str, *how: int) -> None:
        """One step; nothing where it would break a rule."""
        h2 = self._peer.h2
        if what == "open":
            self._sending[self._peer.open(end=bool(how[0]))] = not how[0]
        elif what == "initial window":
            h2.update_settings({4: how[0]})
        elif what == "frame size":
            h2.update_settings({5: how[0]})
        elif what == "ping":
            h2.ping(b"12345678")
        elif what == "window" and how[0] == -1:
            h2.increment_flow_control_window(how[1])
        else:
            living = [one for one in self._sending if one in h2.streams and not h2.streams[one].closed]
            if living:
                self._on_stream(living[how[0] % len(living)], what, *how[1:])

    def _on_stream(self, one: int, what: str, *how: int) -> None:
        h2 = self._peer.h2
        if what == "window":
            h2.increment_flow_control_window(how[0], one)
        elif what == "reset":
            h2.reset_stream(one)
        elif self._sending[one]:
            size = min(how[0], max(h2.local_flow_control_window(one), 0))
            h2.send_data(one, b"x" * size, end_stream=bool(how[1]))
            self._sending[one] = not how[1]


@given(
    STEPS,
    st.integers(0, 2_000),
    st.integers(0, 5),
    st.lists(st.integers(1, 50), max_size=60),
)
@settings(max_examples=150, deadline=None)
def test_a_client_that_keeps_the_rules(
    steps: list[tuple[str, *tuple[int, ...]]], initial: int, answers: int, cuts: list[int]
) -> None:
    server = Server(Limits(stream_window=3_000, connection_window=70_000, max_stream_backlog=500), answering(answers))
    peer = Peer(server, settings={4: initial})
    client = Client(peer)
    for at, step in enumerate(steps):
        client.take(*step)
        # h2 takes the first acknowledgement for that of all settings it has sent.
        if at % 3 == 0 or step[0] in ("initial window", "frame size"):
            peer.exchange(cuts)
    peer.exchange(cuts)
    assert server.connection.open, server.connection.failure
    # Everything that was asked for comes, once the client lets it.
    while any(stream.queue for stream in server.connection.streams.values()):
        peer.h2.increment_flow_control_window(1_000_000)
        for stream in list(server.connection.streams.values()):
            peer.h2.increment_flow_control_window(1_000_000, stream.id)
        peer.exchange()
    for one, call in server.calls.items():
        if call.is_over and peer.reset_code(one) is None and not call.received:
            assert call.closings == 1
    server.lost()


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_input_cut_anywhere_means_the_same(data: st.DataObject) -> None:
    peer = Peer(Server())
    for _ in range(data.draw(st.integers(1, 4))):
        one = peer.open()
        for _ in range(data.draw(st.integers(0, 3))):
            peer.h2.send_data(one, data.draw(st.binary(max_size=50)))
        peer.h2.end_stream(one)
    stream = peer.h2.data_to_send()
    whole, cut = Server(begin=answering(2)), Server(begin=answering(2))
    whole.connection.receive(stream, 0.0)
    sizes = data.draw(st.lists(st.integers(1, 40)))
    while stream:
        size = sizes.pop() if sizes else len(stream)
        cut.connection.receive(stream[:size], 0.0)
        stream = stream[size:]
    assert whole.connection.take() == cut.connection.take()
    assert {one: call.received for one, call in whole.calls.items()} == {
        one: call.received for one, call in cut.calls.items()
    }


# ── clients that do not ──────────────────────────────────────────────────────

IDS = st.sampled_from([0, 1, 2, 3, 5, 7, 9, 2**31 - 1])
BLOCKS = st.one_of(
    st.just(BLOCK),
    st.binary(max_size=60),
    st.just(BLOCK + b"\x40\x01a\x01b"),
    st.just(b"\xbe"),
    st.just(BLOCK + encode([(b"x", b"y" * 300)])),
    st.integers(0, len(BLOCK)).map(lambda size: BLOCK[:size]),
)
FLAGS = st.integers(0, 255)


def serialized(frame: Frame, flags: int) -> bytes:
    data = bytearray(frame.serialize())
    data[4] = flags
    return bytes(data)


STREAMS = IDS.filter(bool)
CODES = st.integers(0, 2**32 - 1)
FRAMES = st.one_of(
    st.builds(lambda one, block: HeadersFrame(one, block, flags=["END_HEADERS"]).serialize(), STREAMS, BLOCKS),
    st.builds(lambda one, block, flags: serialized(HeadersFrame(one, block), flags), STREAMS, BLOCKS, FLAGS),
    st.builds(lambda one, block, flags: serialized(ContinuationFrame(one, block), flags), STREAMS, BLOCKS, FLAGS),
    st.builds(lambda one, data, flags: serialized(DataFrame(one, data), flags), STREAMS, st.binary(max_size=80), FLAGS),
    st.builds(lambda one: DataFrame(one, b"x" * 600, flags=["END_STREAM"]).serialize(), STREAMS),
    st.builds(lambda one, code: RstStreamFrame(one, error_code=code).serialize(), STREAMS, CODES),
    st.builds(frames.window_update, IDS, CODES),
    st.builds(lambda one, value: frames.settings([(one, value)]), st.integers(0, 9), CODES),
    st.just(SettingsFrame(0, flags=["ACK"]).serialize()),
    st.builds(lambda flags: serialized(PingFrame(0, b"12345678"), flags), FLAGS),
    st.builds(lambda one: PriorityFrame(one, depends_on=1).serialize(), STREAMS),
    st.just(GoAwayFrame(0).serialize()),
    st.builds(frames.frame, st.integers(0, 12), FLAGS, IDS, st.binary(max_size=40)),
    st.binary(max_size=30),
)


def checked(server: Server, sent: int) -> None:
    """What must hold at every moment, and what was said is made of frames."""
    connection = server.connection
    for frame in frames_of(connection.take()):
        assert frame.body_len <= 20_000_000
    assert len(connection.streams) <= SMALL.max_streams
    assert server.held.bytes == sum(stream.queued for stream in connection.streams.values())
    assert server.held.bytes <= SMALL.max_held_bytes
    assert connection._receiver._rest_bytes <= sent
    if not connection.open:
        assert not connection.streams
        assert all(call.closings == 1 for call in server.calls.values())
    assert all(call.closings <= 1 for call in server.calls.values())


@given(st.lists(FRAMES, max_size=40), st.integers(0, 3), st.lists(st.integers(1, 30), max_size=20), st.booleans())
@settings(max_examples=300, deadline=None)
def test_clients_that_do_not(parts: list[bytes], answers: int, cuts: list[int], greet: bool) -> None:
    server = Server(SMALL, answering(answers))
    hello = frames.PREFACE + SettingsFrame(0).serialize() if greet else frames.PREFACE
    data = hello + b"".join(parts)
    now = 0.0
    while data:
        size = cuts.pop() if cuts else len(data)
        server.connection.receive(data[:size], now)
        data = data[size:]
        turns = 0
        while server.connection.more:
            server.connection.receive(b"", now)
            turns += 1
            assert turns < 1_000
        checked(server, 100_000)
        now += 1.0
    server.connection.tick(now + 1e9)
    checked(server, 100_000)
    server.lost()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_http2(data: bytes) -> None:
    server = Server(SMALL)
    server.connection.receive(data, 0.0)
    assert not server.connection.open or frames.PREFACE.startswith(data)
    server.lost()


@pytest.mark.parametrize("size", [1, 7])
def test_a_trickle_is_not_quadratic(size: int) -> None:
    """A large frame that comes byte by byte is put together once."""
    server = Server(begin=answering(0))
    server.connection.receive(frames.PREFACE + SettingsFrame(0).serialize(), 0.0)
    server.connection.receive(HeadersFrame(1, BLOCK, flags=["END_HEADERS"]).serialize(), 0.0)
    data = DataFrame(1, b"x" * 16_384).serialize()
    for at in range(0, len(data), size):
        server.connection.receive(data[at : at + size], 0.0)
    assert server.calls[1].received == b"x" * 16_384
