"""Replies encoded by hand mean what the generated classes would have said."""

from __future__ import annotations

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.extproc.codec import encode
from poolpilot_picker.extproc.replies import (
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
from poolpilot_picker.extproc.wire.fast_replies import CACHED, ReplyWriter

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FIELDS = st.lists(st.tuples(TEXT, TEXT), max_size=3)
BYTES = st.binary(max_size=300) | st.integers(0, 70_000).map(bytes)
MODES = st.sampled_from(BodyMode)
MUTATIONS = st.builds(
    Mutation,
    set_headers=FIELDS,
    remove_headers=st.lists(TEXT, max_size=3),
    destination=st.just("") | TEXT,
    clear_route_cache=st.booleans(),
)
REPLIES = st.one_of(
    st.builds(
        HeadersReply,
        request=st.booleans(),
        mutation=MUTATIONS,
        mode_override=st.none() | st.builds(ModeOverride, request=MODES, response=MODES),
    ),
    st.builds(BodyReply, request=st.booleans(), mutation=MUTATIONS, body=st.none() | BYTES),
    st.builds(
        StreamedReply,
        request=st.booleans(),
        chunk=BYTES,
        end_of_stream=st.booleans(),
        compressed=st.booleans(),
        without_message=st.booleans(),
    ),
    st.builds(TrailersReply, request=st.booleans(), destination=st.just("") | TEXT),
    st.builds(
        ImmediateReply,
        status=st.integers(-(2**31), 2**31 - 1),
        body=BYTES,
        set_headers=FIELDS,
        grpc_status=st.none() | st.integers(0, 2**32 - 1),
        details=TEXT,
    ),
)


@given(st.lists(REPLIES, max_size=6))
def test_every_reply(replies: list[Reply]) -> None:
    writer = ReplyWriter()
    for reply in (*replies, *replies):  # the second time from memory
        head, body = writer.encode(reply)
        assert ext_proc.ProcessingResponse.FromString(head + body) == encode(reply)


@pytest.mark.parametrize("size", [0, 1, 100, 110, 118, 119, 120, 127, 128, 129, 16_370, 16_383, 16_384, 16_390, 62_000])
@pytest.mark.parametrize("end", [False, True])
def test_chunks_of_sizes_where_lengths_grow(size: int, end: bool) -> None:
    reply = StreamedReply(request=False, chunk=b"x" * size, end_of_stream=end)
    head, body = ReplyWriter().encode(reply)
    assert body is reply.chunk, "not copied"
    assert ext_proc.ProcessingResponse.FromString(head + body) == encode(reply)


def test_values_that_were_no_utf8() -> None:
    value = b"\xff\xfe".decode("utf-8", "surrogateescape")
    reply = HeadersReply(request=True, mutation=Mutation(set_headers=[("a", value)]))
    assert ext_proc.ProcessingResponse.FromString(ReplyWriter().encode(reply)[0]) == encode(reply)


def test_memory_is_bounded() -> None:
    writer = ReplyWriter()
    for number in range(CACHED + 10):
        mutation = Mutation(set_headers=[("x-request-id", str(number))], destination=str(number))
        writer.encode(HeadersReply(request=True, mutation=mutation))
        writer.encode(StreamedReply(request=True, chunk=bytes(number), end_of_stream=True))
    writer.encode(HeadersReply(request=True, mutation=Mutation(set_headers=[("x", "y" * 1_000)])))
    for memory in (writer.options, writer.destinations, writer._heads):
        assert len(memory) <= CACHED
    assert ("x", "y" * 1_000) not in writer.options
