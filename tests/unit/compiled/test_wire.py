"""The compiled way of short messages against the wire transport in Python: heard and written alike, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poolpilot_picker import compiled
from poolpilot_picker.extproc.replies import (
    NO_MUTATION,
    BodyMode,
    BodyReply,
    HeadersReply,
    ImmediateReply,
    ModeOverride,
    Mutation,
    Reply,
    StreamedReply,
    TrailersReply,
)
from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.calls import Service
from poolpilot_picker.extproc.wire.connection import Connection
from poolpilot_picker.extproc.wire.fast_replies import ReplyWriter
from poolpilot_picker.extproc.wire.fast_requests import RequestReader
from poolpilot_picker.extproc.wire.hpack import Decoder, encode
from poolpilot_picker.extproc.wire.limits import Held, Limits
from poolpilot_picker.extproc.wire.stream import NO_CALL
from wire_traffic import BLOCK, BUFFERED_PARTIAL, DUPLEX, NONE, DataPlane

CORE = compiled.load()
LIMITS = Limits(
    max_message_bytes=9_000,
    max_streams=6,
    stream_window=30_000,
    connection_window=70_000,
    frames_at_once=9,
    early_resets=3.0,
    early_resets_per_s=0.0,
)
NAMES = (("x-gateway-destination-endpoint", "10.0.0.1:8000"), ("content-length", "1"), ("x-\u00e9", "\udcff\u20ac"))
SIZES = (0, 1, 2, 100, 116, 117, 118, 121, 122, 127, 128, 5_000, 16_300, 16_360, 16_384, 20_000)
MUTATIONS = st.builds(
    Mutation,
    set_headers=st.lists(st.sampled_from(NAMES), max_size=3),
    remove_headers=st.lists(st.sampled_from(["x-a", "x-b"]), max_size=2),
    destination=st.sampled_from(["", "10.0.0.1:8000", "[::1]:9"]),
    clear_route_cache=st.booleans(),
)
REPLIES = st.one_of(
    st.builds(
        HeadersReply,
        request=st.booleans(),
        mutation=st.just(NO_MUTATION) | MUTATIONS,
        mode_override=st.sampled_from([None, ModeOverride(BodyMode.NONE, BodyMode.STREAMED)]),
    ),
    st.builds(
        StreamedReply,
        request=st.booleans(),
        chunk=st.sampled_from(SIZES).map(bytes),
        end_of_stream=st.booleans(),
        compressed=st.sampled_from([False, False, True]),
        without_message=st.sampled_from([False, False, True]),
    ),
    st.builds(BodyReply, request=st.booleans(), mutation=st.just(NO_MUTATION) | MUTATIONS),
    st.just(TrailersReply(request=True)),
    st.just(ImmediateReply(status=503, body=b"{}")),
)


class Told:
    """Stands for an exchange: notes what it is told, answers as the test says, passes chunks where it says so."""

    def __init__(self, heard: list[Any], answers: list[list[Reply]], faults: set[int]) -> None:
        self._heard, self._answers, self._faults = heard, answers, faults
        self.passing = False

    def __getattr__(self, name: str) -> Any:
        def tell(*what: Any, **more: Any) -> list[Reply]:
            number = len(self._heard)
            self._heard.append((name, what, more))
            if number in self._faults:
                raise RuntimeError("a fault of ours")
            self.passing = name.startswith("response") and number % 3 > 0
            return self._answers[number % len(self._answers)] if self._answers and name != "closed" else []

        return tell


def served(core: Any, reads: list[bytes], answers: list[list[Reply]], faults: set[int]) -> tuple[Any, ...]:
    """Everything that can be seen of a connection with this core: heard, written, counted."""
    heard: list[Any] = []
    written: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "in_force", core)
        held = Held(40_000)
        service = Service(lambda: Told(heard, answers, faults), lambda: 7.0, LIMITS, held)  # type: ignore[arg-type,return-value]
        service.log_failure = lambda: heard.append("failure")  # type: ignore[method-assign]
        one = Connection(LIMITS, held, service.accept, 0.0, service.messages)
        for number, data in enumerate(reads):
            one.receive(data, float(number))
            written.append(one.take())
            while one.more:
                one.receive(b"", float(number))
                written.append(one.take())
        state = [
            (stream.id, stream.credit, stream.window, stream.queued, stream.answered, stream.remote_over, stream.left)
            for stream in one.streams.values()
        ]
        seen = one.sender.window, one.last_id, one.open, one.failure, held.bytes, service.reader.unfamiliar
        one.lost()
        assert not service.calls and not held.bytes
    return heard, written, state, seen, dict(service.ended)


def hello(window: int) -> bytes:
    return frames.PREFACE + frames.settings([(4, window)]) + frames.SETTINGS_ACK


def data_frame(stream: int, message: bytes) -> bytes:
    return frames.frame(frames.DATA, 0, stream, b"\0" + len(message).to_bytes(4, "big") + message)


EXCHANGES = st.lists(
    st.tuples(
        st.sampled_from([(DUPLEX, DUPLEX), (BUFFERED_PARTIAL, NONE), (DUPLEX, NONE)]),
        st.sampled_from(["head", "body", "answer", "end"]),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=5,
)


def traffic(exchanges: list[Any]) -> list[bytes]:
    """Reads of exchanges one after the other."""
    reads = []
    plane = DataPlane()
    for number, (modes, reset, chunks) in enumerate(exchanges):
        plane._modes = modes
        reads += plane.exchange(number, chunks=chunks, reset=reset)
    return reads


@settings(max_examples=150)
@given(
    EXCHANGES,
    st.lists(st.lists(REPLIES, max_size=3), max_size=4),
    st.sets(st.integers(0, 20), max_size=2),
    st.sampled_from([60, 20_000, 2**28]),
    st.sampled_from(["read by read", "at once", "cut"]),
)
@example(
    [((DUPLEX, DUPLEX), "end", 4)] * 3,
    [[StreamedReply(request=False, chunk=b"x", end_of_stream=False)]],
    set(),
    2**28,
    "at once",
)
def test_exchanges(exchanges: Any, answers: Any, faults: Any, window: int, how: str) -> None:
    reads = [hello(window), *traffic(exchanges)]
    if how != "read by read":
        whole = b"".join(reads)
        size = len(whole) if how == "at once" else 137
        reads = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert served(CORE, reads, answers, faults) == served(None, reads, answers, faults)


@settings(max_examples=150)
@given(EXCHANGES, st.data())
def test_exchanges_with_broken_bytes(exchanges: Any, data: st.DataObject) -> None:
    whole = bytearray(b"".join(traffic(exchanges)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    reads = [hello(2**20), bytes(whole)]
    answers: list[list[Reply]] = [[StreamedReply(request=True, chunk=b"abc", end_of_stream=False)]]
    assert served(CORE, reads, answers, set()) == served(None, reads, answers, set())


FRAMES = st.builds(
    lambda kind, flags, stream, payload: frames.frame(kind, flags, stream, payload),
    st.sampled_from([0, 0, 0, 1, 1, 2, 3, 3, 4, 6, 8, 8, 9, 10]),
    st.sampled_from([0, 0, 0, 1, 4, 4, 4, 5, 8, 0x24, 0x2C]),
    st.sampled_from([0, 1, 1, 3, 3, 5, 2, 2**31 + 1, 7, 9, 11, 13, 15]),
    st.sampled_from(
        [b"", BLOCK, b"\0\0\0\0\2\x2a\0", b"\0\0\0\1\0", b"\1\0\0\0\0", b"\0\0\0\0\0", b"\0\0\0\x10", b"\0\0\0\0"]
    )
    | st.sampled_from([2_000, 9_100, 16_384]).map(bytes)
    | st.binary(max_size=12),
)


@settings(max_examples=300)
@given(st.lists(FRAMES, max_size=30))
def test_any_frames(several: list[bytes]) -> None:
    reads = [hello(2**20), frames.frame(1, 4, 1, BLOCK) + frames.frame(1, 4, 3, BLOCK), b"".join(several)]
    answers: list[list[Reply]] = [[HeadersReply(request=False)]]
    assert served(CORE, reads, answers, set()) == served(None, reads, answers, set())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("request_side", [False, True])
def test_chunks_of_every_size(size: int, over: bool, request_side: bool) -> None:
    answers: list[list[Reply]] = [[StreamedReply(request=request_side, chunk=bytes(size), end_of_stream=over)]]
    reads = [hello(2**20), frames.frame(1, 4, 1, BLOCK) + data_frame(1, b"\x1a\0") + data_frame(1, b"\x22\0")]
    with_core = served(CORE, reads, answers, set())
    assert with_core == served(None, reads, answers, set())
    assert len(with_core[1][-1]) > 2 * size


def prefixed(message: bytes, flag: int = 0) -> bytes:
    """A gRPC message."""
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


BODY = prefixed(b"\x2a\x05\x0a\x03abc")
BEGIN = frames.frame(frames.HEADERS, 4, 1, BLOCK)
ASKED = frames.frame(frames.DATA, 0, 1, prefixed(b"\x1a\0"))
MEASURED = encode([*Decoder(list, 65_536).decode(BLOCK), (b"content-length", b"12")])


@pytest.mark.parametrize(
    "reads",
    [
        [BEGIN + ASKED + frames.frame(0, 0, 1, prefixed(b"\x2a\x05\x0a\x03abc", 1))],
        [BEGIN + ASKED + frames.frame(0, 1, 1, BODY) + frames.frame(0, 0, 1, BODY)],
        [BEGIN + frames.frame(0, 1, 1, b"") + frames.frame(0, 0, 1, BODY)],
        [BEGIN + frames.frame(0, 1, 1, BODY[:7]) + frames.frame(0, 0, 1, BODY)],
        [BEGIN + ASKED + frames.frame(0, 8, 1, b"\2" + BODY + b"\0\0")],
        [BEGIN + ASKED + frames.frame(0, 2, 1, BODY) + frames.frame(0, 0, 1, b"")],
        [BEGIN + ASKED + frames.frame(0, 0, 1, BODY + BODY)],
        [BEGIN + ASKED + frames.frame(0, 0, 1, BODY[:7]) + frames.frame(0, 0, 1, BODY[7:]) + ASKED],
        # What looks like a message is the body of one.
        [
            BEGIN
            + ASKED
            + frames.frame(0, 0, 1, b"\0\0\0\0" + bytes((len(BODY),)))
            + frames.frame(0, 0, 1, BODY)
            + ASKED
        ],
        [BEGIN + ASKED, frames.frame(0, 0, 1, prefixed(b"\x2a" + bytes(9_000))) + ASKED],
        [BEGIN + ASKED, *[frames.frame(0, 0, 1, prefixed(b"\x2a\xa0\x1f\x0a\x9d\x1f" + bytes(3_997)))] * 20],
        [BEGIN, *[frames.frame(0, 0, 1, bytes(16_384))] * 3],
        [frames.frame(frames.HEADERS, 4, 3, BLOCK) + BEGIN],
        [BEGIN + ASKED + frames.rst_stream(1, 8) + BEGIN],
        [BEGIN + ASKED + frames.rst_stream(1, 8) + ASKED + frames.rst_stream(1, 8)],
        [BEGIN + ASKED + BEGIN],
        [BEGIN + frames.frame(frames.HEADERS, 4, 2, BLOCK)],
        [BEGIN + frames.frame(frames.HEADERS, 4, 2**31 + 3, BLOCK) + frames.frame(0, 0, 2**31 + 3, BODY)],
        [BEGIN + frames.frame(frames.HEADERS, 5, 3, BLOCK)],
        [BEGIN + frames.frame(frames.HEADERS, 0, 3, BLOCK) + frames.frame(frames.CONTINUATION, 4, 3, b"")],
        [BEGIN + frames.frame(frames.HEADERS, 0, 3, BLOCK) + ASKED],
        [BEGIN + frames.frame(frames.HEADERS, 4, 3, b"\x82"), frames.frame(frames.HEADERS, 4, 5, b"\x82")],
        [frames.frame(frames.HEADERS, 4, number, BLOCK) for number in range(1, 21, 2)],
        [frames.frame(frames.HEADERS, 4, 1, MEASURED), frames.frame(frames.HEADERS, 4, 3, MEASURED), *[ASKED] * 3],
        [BEGIN + frames.rst_stream(1, 8)],
        [BEGIN + ASKED + frames.frame(frames.RST_STREAM, 0, 1, b"\0\0\0")],
        [BEGIN + ASKED + frames.frame(frames.RST_STREAM, 0, 7, b"\0\0\0\0")],
        [BEGIN + ASKED + frames.frame(0, 0, 9, BODY)],
        [BEGIN + ASKED + frames.frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\0") + ASKED],
        [BEGIN + ASKED + frames.goaway(1, 0) + ASKED + frames.ping(b"12345678")],
        [BEGIN + ASKED + frames.frame(0, 0, 1, bytes(16_385))],
        [frames.frame(frames.HEADERS, 4, 1, BLOCK[:-1]), ASKED],
    ],
)
@pytest.mark.parametrize("window", [0, 30, 2**20])
def test_frames_that_are_not_as_nearly_all_are(reads: list[bytes], window: int) -> None:
    answers: list[list[Reply]] = [[HeadersReply(request=False)], [BodyReply(request=False)]]
    for several in (reads, [b"".join(reads)]):
        with_core = served(CORE, [hello(window), *several], answers, set())
        assert with_core == served(None, [hello(window), *several], answers, set())


def test_resets_before_an_answer_are_counted() -> None:
    reads = [hello(2**20), *[frames.frame(1, 4, n, BLOCK) + frames.rst_stream(n, 8) for n in range(1, 13, 2)]]
    with_core = served(CORE, reads, [], set())
    assert with_core == served(None, reads, [], set())
    failure = with_core[3][3]
    assert failure is not None and "before they are answered" in failure[1]


def test_replies_beyond_the_connection_window_wait() -> None:
    answers: list[list[Reply]] = [[StreamedReply(request=False, chunk=bytes(16_000), end_of_stream=False)]]
    reads = [hello(2**20), BEGIN, *[ASKED] * 6]
    with_core = served(CORE, reads, answers, set())
    assert with_core == served(None, reads, answers, set())
    assert with_core[3][0] == 0 and with_core[3][4] > 16_000


def test_nothing_of_a_new_connection_is_familiar_before_its_settings() -> None:
    for reads in ([frames.PREFACE + BEGIN], [frames.PREFACE, BEGIN + ASKED], [frames.PREFACE + ASKED]):
        assert served(CORE, reads, [], set()) == served(None, reads, [], set())


def messages(reader: RequestReader | None = None) -> Any:
    return CORE.messages(
        reader or RequestReader(), ReplyWriter(), (StreamedReply, HeadersReply, BodyReply, NO_MUTATION), b"", 100
    )


@pytest.mark.parametrize("data", [None, "text", bytearray(3), memoryview(b"abc")])
def test_only_bytes_are_read(data: Any) -> None:
    with pytest.raises(TypeError):
        messages().read(data, 0, 1)
    with pytest.raises(TypeError):
        CORE.frames(Connection(LIMITS, Held(1), lambda *_: None, 0.0), None, {}, LIMITS, NO_CALL).run(data, 0, 1, 1)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(("at", "end"), [(-1, 2), (0, 4), (3, 2), (4, 4), (-5, -2)])
def test_offsets_outside_are_refused(at: int, end: int) -> None:
    with pytest.raises(ValueError, match=f"a message must lie within 3 bytes, not at {at} to {end}"):
        messages().read(b"\x12\x01\x00", at, end)


def test_frames_begin_within_the_data() -> None:
    one = CORE.frames(Connection(LIMITS, Held(1), lambda *_: None, 0.0), None, {}, LIMITS, NO_CALL)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="not at -1"):
        one.run(bytes(20), -1, 1, 1)
    assert one.run(b"\0" * 5, 9, 1, 70_000) == 70_000
    assert (one.at, one.turns) == (9, 1)


def test_no_stream_of_another_kind() -> None:
    connection = Connection(LIMITS, Held(1), lambda *_: None, 0.0)  # type: ignore[arg-type,return-value]
    connection.streams[1] = object()  # type: ignore[assignment]
    with pytest.raises(TypeError):
        CORE.frames(connection, None, {}, LIMITS, NO_CALL).run(data_frame(1, b"\x2a\0"), 0, 1, 70_000)


@given(st.binary(max_size=80))
def test_truncated_messages(data: bytes) -> None:
    """Whatever stands behind the end is not looked at."""
    for end in range(len(data) + 1):
        assert repr(messages().read(data, 0, end)) == repr(RequestReader().read(data[:end]))
