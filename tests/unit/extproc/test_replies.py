"""Chunks of full duplex replies, and the form of a refusal."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.errors import BadRequest
from poolpilot_picker.extproc.replies import CHUNK_BYTES, ImmediateReply, StreamedReply, refusal, streamed


@given(lengths=st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=4), end=st.booleans(), request=st.booleans())
def test_chunks(lengths: list[int], end: bool, request: bool) -> None:
    chunks = [bytes([index]) * length for index, length in enumerate(lengths)]
    replies = streamed(chunks, end, request=request)
    assert replies, "there is always one, to carry the end"
    assert b"".join(one.chunk for one in replies if isinstance(one, StreamedReply)) == b"".join(chunks)
    for index, reply in enumerate(replies):
        assert isinstance(reply, StreamedReply) and reply.request is request
        assert len(reply.chunk) <= CHUNK_BYTES
        assert reply.chunk or len(replies) == 1
        assert reply.end_of_stream == (end and index == len(replies) - 1)


def test_messages_of_mode_grpc_are_not_cut() -> None:
    assert streamed([b"x" * 100_000], True, request=True, whole=True) == [
        StreamedReply(request=True, chunk=b"x" * 100_000, end_of_stream=True)
    ]


def test_a_refusal_is_an_openai_error_object() -> None:
    reply = refusal(BadRequest("no such thing", param="model"), grpc=True)
    assert reply == ImmediateReply(
        status=400,
        body=reply.body,
        set_headers=[("content-type", "application/json")],
        grpc_status=3,
        details="poolpilot_BadRequest",
    )
    assert msgspec.json.decode(reply.body) == {
        "error": {
            "message": "inference error: BadRequest - no such thing",
            "type": "BadRequestError",
            "param": "model",
            "code": 400,
        }
    }
