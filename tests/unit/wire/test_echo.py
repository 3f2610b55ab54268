"""A chunk that is sent back without being read is answered as the exchange would have answered it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.extproc.codec import encode
from poolpilot_picker.extproc.replies import StreamedReply
from poolpilot_picker.extproc.wire.echo import Echo
from poolpilot_picker.extproc.wire.fast_replies import CACHED, ReplyWriter
from poolpilot_picker.extproc.wire.fast_requests import RequestReader

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZES = (2, 3, 100, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 1_000, 16_379, 16_380)
BYTES = st.binary(min_size=2, max_size=200) | st.sampled_from(SIZES).map(bytes)


def chunk(body: bytes, end: bool = False, served: str = "10.0.0.1:8000") -> bytes:
    message = ext_proc.ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = body, end
    if served:
        message.metadata_context.filter_metadata["envoy.lb"]["served"] = served
    return message.SerializeToString()


class Silent:
    """An exchange that answers nothing."""

    def set_modes(self, request: int, response: int) -> None:
        """Any."""

    def response_body(self, *_: Any, **__: Any) -> list[Any]:
        return []


def echo(seen: Iterable[bytes] = ()) -> Echo:
    """With a reader that has read these messages."""
    reader = RequestReader()
    for message in seen:
        reader.dispatch(Silent(), message, 0.0)  # type: ignore[arg-type]
    return Echo(reader, ReplyWriter())


def answer(one: Echo, message: bytes) -> ext_proc.ProcessingResponse | None:
    found = one.chunk(b"12345" + message, 5)
    return None if found is None else ext_proc.ProcessingResponse.FromString(b"".join(found))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("served", ["", "10.0.0.1:8000"])
def test_a_chunk_comes_back(size: int, served: str) -> None:
    one = echo([chunk(b"first", served=served)])
    body = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    expected = encode(StreamedReply(request=False, chunk=body, end_of_stream=False))
    for _ in range(2):  # the second time from memory
        assert answer(one, chunk(body, served=served)) == expected


def test_what_is_more_than_a_chunk_is_for_the_exchange() -> None:
    other = ext_proc.ProcessingRequest()
    other.request_body.body = b"a request"
    flagged = ext_proc.ProcessingRequest()
    flagged.response_body.body, flagged.response_body.grpc_message_compressed = b"framed", True
    watched = ext_proc.ProcessingRequest(observability_mode=True)
    watched.response_body.body = b"watched"
    one = echo([chunk(b"first"), chunk(b"first", served="")])
    for message in (
        chunk(b"the last", end=True),
        chunk(b"", end=True),
        chunk(b""),
        chunk(b"of another pod", served="10.0.0.2:8000"),
        chunk(bytes(1 << 14)),
        chunk(bytes(1 << 21)),
        *(one.SerializeToString() for one in (other, flagged, watched)),
        b"",
        b"\x2a",
    ):
        assert answer(one, message) is None, message[:40]


def same_or_none(one: Echo, message: bytes) -> None:
    """Answered here means: a message, a chunk that does not end the answer, and the answer that the codec gives."""
    found = answer(one, message)
    if found is None:
        return
    try:
        parsed = ext_proc.ProcessingRequest.FromString(message)
    except DecodeError:
        raise AssertionError("no message was answered") from None
    assert parsed.WhichOneof("request") == "response_body" and not parsed.observability_mode
    body = parsed.response_body
    assert not body.end_of_stream and not body.grpc_message_compressed and not body.end_of_stream_without_message
    assert found == encode(StreamedReply(request=False, chunk=body.body, end_of_stream=False))


@given(BYTES, st.data())
def test_broken_chunks(body: bytes, data: st.DataObject) -> None:
    served = data.draw(st.sampled_from(["", "a"]))
    message = bytearray(chunk(body, served=served))
    head = range(min(8, len(message)))
    for _ in range(data.draw(st.integers(0, 3))):
        message[data.draw(st.sampled_from(head))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(message)) | st.just(len(message)))
    one = echo([chunk(b"first", served=""), chunk(b"first", served="a")])
    same_or_none(one, bytes(message[:kept]) + data.draw(st.sampled_from([b"", b"\x52\x00", b"\x50\x01"])))


@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    same_or_none(echo([chunk(b"first", served="")]), b"\x2a" + data)


def test_what_is_remembered_is_bounded() -> None:
    writer = ReplyWriter()
    reader = RequestReader()
    reader.dispatch(Silent(), chunk(b"first"), 0.0)  # type: ignore[arg-type]
    one = Echo(reader, writer)
    for size in range(2, 2 * CACHED):
        assert answer(one, chunk(bytes(size))) is not None
    assert len(writer.heads) <= CACHED
