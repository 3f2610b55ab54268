"""What an exchange answers, free of any encoding: the transport turns these into ProcessingResponse messages."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

Field = tuple[str, str]


class BodyMode(IntEnum):
    """envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class ModeOverride(msgspec.Struct, frozen=True):
    """Body modes for the rest of the exchange. Both are always sent: Envoy reads an unset one as NONE."""

    request: BodyMode
    response: BodyMode


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to the headers, and where the request goes."""

    set_headers: Sequence[Field] = ()
    remove_headers: Sequence[str] = ()
    destination: str = ""
    """Also sent as dynamic metadata; empty = none."""
    clear_route_cache: bool = False


NO_MUTATION = Mutation()


class HeadersReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answers RequestHeaders or ResponseHeaders."""

    request: bool
    mutation: Mutation = NO_MUTATION
    mode_override: ModeOverride | None = None


class BodyReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answers one body message where the body is not streamed in full duplex."""

    request: bool
    mutation: Mutation = NO_MUTATION
    body: bytes | None = None
    """Replaces the body; None leaves it."""


class StreamedReply(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk towards the other side in full duplex."""

    request: bool
    chunk: bytes
    end_of_stream: bool


class TrailersReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answers trailers."""

    request: bool


class ImmediateReply(msgspec.Struct, frozen=True, kw_only=True):
    """Ends the exchange with an answer of the picker's own."""

    status: int
    body: bytes
    set_headers: Sequence[Field] = ()
    grpc_status: int | None = None
    details: str = ""
    """What the data plane's access log and other filters get to see as response code details."""


Reply = HeadersReply | BodyReply | StreamedReply | TrailersReply | ImmediateReply
