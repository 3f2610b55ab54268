"""ProcessingRequest → what an exchange needs; replies → ProcessingResponse. Alone in knowing the protobuf types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from poolpilot_picker.extproc.answered import NO_METADATA, Metadata
from poolpilot_picker.extproc.replies import (
    BodyReply,
    HeadersReply,
    ImmediateReply,
    Mutation,
    PatienceReply,
    Reply,
    StreamedReply,
)
from poolpilot_picker.requests.headers import DESTINATION, LB_NAMESPACE

if TYPE_CHECKING:
    from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
    from google.protobuf.struct_pb2 import Struct, Value

    from poolpilot_picker.extproc.exchange import Exchange

ATTRIBUTES = "envoy.filters.http.ext_proc"
OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _plain(value: Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _struct(value.struct_value)
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)


def _struct(struct: Struct) -> dict[str, Any]:
    return {key: _plain(value) for key, value in struct.fields.items()}


def metadata_of(message: ext_proc.ProcessingRequest) -> Metadata:
    """Dynamic metadata by namespace."""
    filters = message.metadata_context.filter_metadata
    return {name: _struct(struct) for name, struct in filters.items()} if filters else NO_METADATA


def attributes_of(message: ext_proc.ProcessingRequest) -> dict[str, Any]:
    """Attributes that the filter sent, of whatever filter name."""
    merged: dict[str, Any] = {}
    for struct in message.attributes.values():
        merged.update(_struct(struct))
    return merged


def fields_of(headers: ext_proc.HttpHeaders) -> list[tuple[str, str | bytes]]:
    """(name, value) pairs; the raw value wins over the text (protocol, header values)."""
    return [(field.key.lower(), field.raw_value or field.value) for field in headers.headers.headers]


def dispatch(exchange: Exchange, message: ext_proc.ProcessingRequest, now: float) -> list[Reply]:
    """Hands a message to the exchange and returns its replies."""
    if message.HasField("protocol_config"):
        modes = message.protocol_config
        exchange.set_modes(modes.request_body_mode, modes.response_body_mode)
    kind = message.WhichOneof("request")
    if kind == "response_body":
        body = message.response_body
        return _framed(body, exchange.response_body(body.body, body.end_of_stream, now=now))
    if kind == "request_body":
        body = message.request_body
        replies = exchange.request_body(body.body, body.end_of_stream, now=now, metadata=metadata_of(message))
        return _framed(body, replies)
    if kind == "request_headers":
        return exchange.request_headers(
            fields_of(message.request_headers),
            message.request_headers.end_of_stream,
            now=now,
            metadata=metadata_of(message),
        )
    if kind == "response_headers":
        return exchange.response_headers(
            fields_of(message.response_headers),
            message.response_headers.end_of_stream,
            now=now,
            attributes=attributes_of(message),
            metadata=metadata_of(message),
        )
    if kind == "request_trailers":
        return exchange.request_trailers(now=now)
    if kind == "response_trailers":
        return exchange.response_trailers(now=now)
    return []


def _framed(body: ext_proc.HttpBody, replies: list[Reply]) -> list[Reply]:
    """In mode GRPC a message goes out framed as it came in."""
    if not body.grpc_message_compressed and not body.end_of_stream_without_message:
        return replies
    return [
        msgspec.structs.replace(
            reply, compressed=body.grpc_message_compressed, without_message=body.end_of_stream_without_message
        )
        if isinstance(reply, StreamedReply)
        else reply
        for reply in replies
    ]


def _apply(mutation: Mutation, common: ext_proc.CommonResponse, response: ext_proc.ProcessingResponse) -> None:
    for name, value in mutation.set_headers:
        option = common.header_mutation.set_headers.add()
        option.header.key = name
        option.header.raw_value = value.encode("utf-8", "surrogateescape")
        option.append_action = OVERWRITE
    if mutation.remove_headers:
        common.header_mutation.remove_headers.extend(mutation.remove_headers)
    _direct(mutation.destination, response)
    if mutation.clear_route_cache:
        common.clear_route_cache = True


def _direct(destination: str, response: ext_proc.ProcessingResponse) -> None:
    if destination:
        response.dynamic_metadata.get_or_create_struct(LB_NAMESPACE)[DESTINATION] = destination


def encode(reply: Reply) -> ext_proc.ProcessingResponse:
    """One reply as the message to send."""
    response = ext_proc.ProcessingResponse()
    if isinstance(reply, HeadersReply):
        part = response.request_headers if reply.request else response.response_headers
        part.SetInParent()
        _apply(reply.mutation, part.response, response)
        if reply.mode_override is not None:
            override: processing_mode_pb2.ProcessingMode = response.mode_override
            override.request_body_mode = int(reply.mode_override.request)
            override.response_body_mode = int(reply.mode_override.response)
    elif isinstance(reply, BodyReply):
        part = response.request_body if reply.request else response.response_body
        part.SetInParent()
        _apply(reply.mutation, part.response, response)
        if reply.body is not None:
            part.response.body_mutation.body = reply.body
    elif isinstance(reply, StreamedReply):
        part = response.request_body if reply.request else response.response_body
        streamed = part.response.body_mutation.streamed_response
        streamed.body = reply.chunk
        streamed.end_of_stream = reply.end_of_stream
        if reply.compressed:
            streamed.grpc_message_compressed = True
        if reply.without_message:
            streamed.end_of_stream_without_message = True
    elif isinstance(reply, ImmediateReply):
        immediate = response.immediate_response
        immediate.status.code = reply.status
        immediate.body = reply.body
        immediate.details = reply.details
        for name, value in reply.set_headers:
            option = immediate.headers.set_headers.add()
            option.header.key = name
            option.header.raw_value = value.encode()
            option.append_action = OVERWRITE
        if reply.grpc_status is not None:
            immediate.grpc_status.status = reply.grpc_status
    elif isinstance(reply, PatienceReply):
        response.override_message_timeout.FromMilliseconds(reply.milliseconds)
    else:
        (response.request_trailers if reply.request else response.response_trailers).SetInParent()
        _direct(reply.destination, response)
    return response
