"""Messages read by hand reach the exchange as those that the generated classes read."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker import compiled
from poolpilot_picker.extproc import codec
from poolpilot_picker.extproc.replies import NO_MUTATION, BodyReply, HeadersReply, Reply, StreamedReply
from poolpilot_picker.extproc.wire.fast_replies import ReplyWriter
from poolpilot_picker.extproc.wire.fast_requests import CACHED, RequestReader

REPLIES = (StreamedReply, HeadersReply, BodyReply, NO_MUTATION)

Heard = list[tuple[Any, ...]]


class Ear:
    """Stands for an exchange: remembers what it is told."""

    def __init__(self) -> None:
        self.heard: Heard = []

    def set_modes(self, request: int, response: int) -> None:
        self.heard.append(("modes", request, response))

    def request_headers(self, fields: Any, end: bool, *, now: float, metadata: Any) -> list[Reply]:
        return self._note("request headers", _plain(fields), end, now, dict(metadata))

    def response_headers(self, fields: Any, end: bool, *, now: float, attributes: Any, metadata: Any) -> list[Reply]:
        return self._note("response headers", _plain(fields), end, now, dict(attributes), dict(metadata))

    def request_body(self, chunk: bytes, end: bool, *, now: float, metadata: Any) -> list[Reply]:
        return self._note("request body", chunk, end, now, dict(metadata))

    def response_body(self, chunk: bytes, end: bool, *, now: float) -> list[Reply]:
        return self._note("response body", chunk, end, now)

    def request_trailers(self, *, now: float) -> list[Reply]:
        return self._note("request trailers", now)

    def response_trailers(self, *, now: float) -> list[Reply]:
        return self._note("response trailers", now)

    def _note(self, *what: Any) -> list[Reply]:
        self.heard.append(what)
        return [StreamedReply(request=True, chunk=b"", end_of_stream=False)]


def _plain(fields: Any) -> list[tuple[str, bytes]]:
    """One form for what may come as text or as bytes."""
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in fields]


def by_class(message: bytes) -> tuple[Heard, Any]:
    ear = Ear()
    parsed = ext_proc.ProcessingRequest.FromString(message)
    replies = None if parsed.observability_mode else codec.dispatch(ear, parsed, 5.0)  # type: ignore[arg-type]
    return ear.heard, replies


def by_hand(message: bytes, reader: RequestReader) -> tuple[Heard, Any]:
    ear = Ear()
    answer = reader.dispatch(ear, message, 5.0)  # type: ignore[arg-type]
    # The compiled reader shares the caches: what it finds there, and what it has read itself.
    for one in (reader, RequestReader()):
        read = compiled.load().messages(one, ReplyWriter(), REPLIES, b"", 2**20).read
        expected = repr(RequestReader().read(message))
        assert (
            repr(read(message, 0, len(message)))
            == repr(read(b"\x0a" + message + b"\x0a", 1, 1 + len(message)))
            == expected
        )
    return ear.heard, answer


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def structs(draw: st.DrawFn) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(draw(st.dictionaries(TEXT, JSON, max_size=3)))
    if draw(st.booleans()):
        struct.fields[draw(TEXT)].SetInParent()
    return struct


@st.composite
def header_maps(draw: st.DrawFn, part: Any) -> None:
    for key, value, raw in draw(st.lists(st.tuples(TEXT, TEXT, st.binary(max_size=20)), max_size=5)):
        part.headers.append(base_pb2.HeaderValue(key=key, value=value, raw_value=raw))


@st.composite
def messages(draw: st.DrawFn) -> ext_proc.ProcessingRequest:
    message = ext_proc.ProcessingRequest()
    kind = draw(st.sampled_from(["", *(field.name for field in message.DESCRIPTOR.oneofs_by_name["request"].fields)]))
    if kind:
        part = getattr(message, kind)
        part.SetInParent()
        if kind.endswith("headers"):
            if draw(st.booleans()):
                draw(header_maps(part.headers))
            part.end_of_stream = draw(st.booleans())
        elif kind.endswith("body"):
            part.body = draw(st.binary(max_size=200) | st.integers(0, 40_000).map(bytes))
            part.end_of_stream = draw(st.booleans())
            if draw(st.integers(0, 9)) == 0:
                part.end_of_stream_without_message = draw(st.booleans())
                part.grpc_message_compressed = draw(st.booleans())
        elif draw(st.booleans()):
            draw(header_maps(part.trailers))
    if draw(st.booleans()):
        message.metadata_context.SetInParent()
        for name in draw(st.lists(TEXT, max_size=2)):
            message.metadata_context.filter_metadata[name].CopyFrom(draw(structs()))
    if draw(st.booleans()):
        message.attributes[draw(TEXT)].CopyFrom(draw(structs()))
    if draw(st.booleans()):
        config = message.protocol_config
        config.SetInParent()
        config.request_body_mode = draw(st.integers(-1, 6) | st.integers(-(2**31), 2**31 - 1))
        config.response_body_mode = draw(st.integers(-1, 6))
        config.send_body_without_waiting_for_header_response = draw(st.booleans())
    message.observability_mode = draw(st.integers(0, 9)) == 0
    return message


@given(st.lists(messages(), max_size=4))
def test_every_message(several: list[ext_proc.ProcessingRequest]) -> None:
    reader = RequestReader()
    for message in (*several, *several):  # the second time from memory
        data = message.SerializeToString()
        assert by_hand(data, reader) == by_class(data)


@given(st.lists(messages(), min_size=2, max_size=3))
def test_messages_behind_one_another_are_merged(several: list[ext_proc.ProcessingRequest]) -> None:
    """Protocol buffers allow it: of a number the last counts, messages are merged, lists are joined."""
    data = b"".join(message.SerializeToString() for message in several)
    if sum(len(message.attributes) for message in several) < 2:  # maps have no order
        assert by_hand(data, RequestReader()) == by_class(data)


@given(messages(), st.data())
def test_broken_messages(message: ext_proc.ProcessingRequest, data: st.DataObject) -> None:
    whole = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if whole:
            at = data.draw(st.integers(0, len(whole) - 1))
            whole[at] = data.draw(st.integers(0, 255))
    _alike(bytes(whole[: data.draw(st.integers(0, len(whole)))]) if data.draw(st.booleans()) else bytes(whole))


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    _alike(data)


def _canonical(value: Any) -> Any:
    """NaN is unlike itself, 1.0 and True are like 1, and maps have no order."""
    if isinstance(value, dict):
        return sorted((key, _canonical(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return [_canonical(one) for one in value]
    return repr(value)


def _alike(data: bytes) -> None:
    try:
        expected = by_class(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            by_hand(data, RequestReader())
    else:
        if len(ext_proc.ProcessingRequest.FromString(data).attributes) < 2:
            assert _canonical(by_hand(data, RequestReader())) == _canonical(expected)


def headers(*fields: tuple[str, bytes]) -> bytes:
    message = ext_proc.ProcessingRequest()
    for key, raw in fields:
        message.request_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=raw))
    message.protocol_config.request_body_mode = 3
    return message.SerializeToString()


def test_usual_messages_are_read_by_hand() -> None:
    reader = RequestReader()
    response = ext_proc.ProcessingRequest()
    response.response_headers.headers.headers.append(base_pb2.HeaderValue(key=":status", raw_value=b"200"))
    response.metadata_context.filter_metadata["envoy.lb"].update(
        {"x-gateway-destination-endpoint-served": "1.2.3.4:80"}
    )
    response.attributes["envoy.filters.http.ext_proc"].update(
        {"response.code_details": "via_upstream", "upstream.n": 1}
    )
    chunk = ext_proc.ProcessingRequest()
    chunk.response_body.body = b"data"
    body = ext_proc.ProcessingRequest()
    body.request_body.body = b"{}" * 1_000
    body.request_body.end_of_stream = True
    body.metadata_context.SetInParent()
    for data in (
        headers((":path", b"/v1"), ("x-id", b"1")),
        *(one.SerializeToString() for one in (response, chunk, body)),
    ):
        assert by_hand(data, reader) == by_class(data)
    assert reader.unfamiliar == 0
    reader.dispatch(Ear(), b"\x32\x00", 0.0)  # type: ignore[arg-type]
    assert reader.unfamiliar == 1


def test_values_come_as_text_where_they_are() -> None:
    class Fields(Ear):
        def request_headers(self, fields: Any, end: bool, **more: Any) -> list[Reply]:
            self.heard = list(fields)
            return []

    ear = Fields()
    RequestReader().dispatch(ear, headers((":path", "/ü".encode()), ("x-raw", b"\xff")), 0.0)  # type: ignore[arg-type]
    assert ear.heard == [(":path", "/ü"), ("x-raw", b"\xff")]


def test_an_exchange_that_fails_is_not_told_twice() -> None:
    """Errors of the exchange must not pass for a message that is unfamiliar."""

    class Failing(Ear):
        def request_headers(self, fields: Any, end: bool, **more: Any) -> list[Reply]:
            self.heard.append(("headers",))
            raise RecursionError

    ear = Failing()
    with pytest.raises(RecursionError):
        RequestReader().dispatch(ear, headers((":path", b"/")), 0.0)  # type: ignore[arg-type]
    assert [what for what, *_ in ear.heard] == ["modes", "headers"]


def test_metadata_of_any_depth() -> None:
    def varint(number: int) -> bytes:
        return bytes((number,)) if number < 128 else bytes((number & 127 | 128,)) + varint(number >> 7)

    def part(tag: int, content: bytes) -> bytes:
        return bytes((tag,)) + varint(len(content)) + content

    value = b""
    for _ in range(5_000):
        value = part(0x32, part(0x0A, value))
    struct = part(0x0A, part(0x0A, b"k") + part(0x12, value))
    data = part(0x42, part(0x0A, part(0x0A, b"ns") + part(0x12, struct)))
    with pytest.raises(DecodeError):  # which has a limit of its own
        RequestReader().dispatch(Ear(), data, 0.0)  # type: ignore[arg-type]


def test_memory_is_bounded() -> None:
    reader = RequestReader()
    for number in range(CACHED + 10):
        reader.dispatch(Ear(), headers(("x-request-id", b"%d" % number)), 0.0)  # type: ignore[arg-type]
    reader.dispatch(Ear(), headers(("x-long", b"x" * 1_000)), 0.0)  # type: ignore[arg-type]
    assert len(reader._fields.known) <= CACHED
    assert all(len(data) <= 512 for data in reader._fields.known)
