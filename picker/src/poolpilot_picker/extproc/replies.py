"""What an exchange answers, free of any encoding: the transport turns these into ProcessingResponse messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.requests import error_body
from poolpilot_picker.requests import headers as names

if TYPE_CHECKING:
    from poolpilot_picker.errors import RequestRefused

Field = tuple[str, str]

CHUNK_BYTES: Final = 62_000
"""Largest body chunk in a full duplex reply (protocol, body replies)."""


class BodyMode(IntEnum):
    """envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


DUPLEX: Final = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC)
"""The body passes through the picker, which answers when it likes."""
WAITED_FOR: Final = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
"""The request waits for what the picker says to its body."""


_MODES: Final = {int(mode): mode for mode in BodyMode}


def body_mode(number: int) -> BodyMode:
    """The mode of a number; one that a later protocol may add counts as full duplex, the protocol's default."""
    return _MODES.get(number, BodyMode.FULL_DUPLEX_STREAMED)


class ModeOverride(msgspec.Struct, frozen=True):
    """Body modes for the rest of the exchange. Both are always sent: Envoy reads an unset one as NONE."""

    request: BodyMode
    response: BodyMode


class Mutation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Changes to the headers, and where the request goes."""

    set_headers: Sequence[Field] = ()
    remove_headers: Sequence[str] = ()
    destination: str = ""
    """Also sent as dynamic metadata; empty = none."""
    clear_route_cache: bool = False


NO_MUTATION = Mutation()


class HeadersReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answers RequestHeaders or ResponseHeaders."""

    request: bool
    mutation: Mutation = NO_MUTATION
    mode_override: ModeOverride | None = None


class BodyReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answers one body message where the body is not streamed in full duplex."""

    request: bool
    mutation: Mutation = NO_MUTATION
    body: bytes | None = None
    """Replaces the body; None leaves it."""


class StreamedReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One chunk towards the other side in full duplex."""

    request: bool
    chunk: bytes
    end_of_stream: bool
    compressed: bool = False
    """Mode GRPC: the message is compressed."""
    without_message: bool = False
    """Mode GRPC: the end of the stream, and no message with it."""


class TrailersReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answers trailers."""

    request: bool
    destination: str = ""
    """Where the request goes, as dynamic metadata: for a request that has a head and trailers and nothing between."""


class ImmediateReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ends the exchange with an answer of the picker's own."""

    status: int
    body: bytes
    set_headers: Sequence[Field] = ()
    grpc_status: int | None = None
    details: str = ""
    """What the data plane's access log and other filters get to see as response code details."""


class PatienceReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answers nothing: asks the data plane to wait longer for the answer to its last message (once per message)."""

    milliseconds: int


Reply = HeadersReply | BodyReply | StreamedReply | TrailersReply | ImmediateReply | PatienceReply


def streamed(chunks: Sequence[bytes], end_of_stream: bool, *, request: bool, whole: bool = False) -> list[Reply]:
    """Chunks of at most CHUNK_BYTES; the end of stream on the last; one empty chunk for an empty body.

    `whole`: mode GRPC, where a chunk is a message and stays one.
    """
    if len(chunks) == 1 and (whole or len(chunks[0]) <= CHUNK_BYTES):
        # As nearly always: one for each token of an answer.
        return [StreamedReply(request=request, chunk=chunks[0], end_of_stream=end_of_stream)]
    pieces = [
        chunk[start : start + CHUNK_BYTES] if len(chunk) > CHUNK_BYTES and not whole else chunk
        for chunk in chunks
        for start in (range(0, len(chunk), CHUNK_BYTES) if not whole else (0,))
    ] or [b""]
    last = len(pieces) - 1
    return [
        StreamedReply(request=request, chunk=piece, end_of_stream=end_of_stream and index == last)
        for index, piece in enumerate(pieces)
    ]


def refusal(refused: RequestRefused, *, grpc: bool) -> ImmediateReply:
    """The answer to a refused request: an OpenAI error object, and the status that a gRPC client reads."""
    fields: list[Field] = [("content-type", "application/json")]
    if refused.dropped_reason:
        fields.append((names.DROPPED_REASON, refused.dropped_reason))
    if refused.retry_after_s is not None:
        fields.append((names.RETRY_AFTER, str(max(1, math.ceil(refused.retry_after_s)))))
    return ImmediateReply(
        status=refused.status,
        body=error_body(refused),
        set_headers=fields,
        grpc_status=refused.grpc_status if grpc else None,
        details=f"poolpilot_{refused.dropped_reason or refused.code}",
    )
