"""Protobuf messages → calls of the exchange; replies → protobuf messages."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import json_format, struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from exchange_desk import ADDRESSES, BUFFERED, DUPLEX, NONE, STREAMED, Desk, chat
from poolpilot_picker.extproc.codec import attributes_of, dispatch, encode, fields_of, metadata_of
from poolpilot_picker.extproc.replies import (
    BodyReply,
    HeadersReply,
    ImmediateReply,
    ModeOverride,
    Mutation,
    Reply,
    StreamedReply,
    TrailersReply,
)

LIST = ",".join(ADDRESSES)


def request(**fields: Any) -> ext_proc.ProcessingRequest:
    """A message from its JSON form."""
    return json_format.ParseDict(fields, ext_proc.ProcessingRequest())


def headers(**fields: str) -> dict[str, Any]:
    """An HttpHeaders in JSON form, with text values."""
    return {"headers": {"headers": [{"key": name, "value": value} for name, value in fields.items()]}}


def streamed_response(reply: Reply) -> dict[str, Any]:
    """The chunk of a full duplex reply, in JSON form."""
    chunk = encode(reply).request_body.response.body_mutation.streamed_response
    return json_format.MessageToDict(chunk, preserving_proto_field_name=True)


def test_raw_values_go_before_texts() -> None:
    message = ext_proc.HttpHeaders()
    for key, value, raw in [
        (":path", "/a", b""),
        ("X-Mixed", "", b"\xff"),
        ("both", "text", b"raw"),
        ("none", "", b""),
    ]:
        message.headers.headers.append(base_pb2.HeaderValue(key=key, value=value, raw_value=raw))
    assert fields_of(message) == [(":path", "/a"), ("x-mixed", b"\xff"), ("both", b"raw"), ("none", "")]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_metadata_and_attributes_of_any_shape(value: Any) -> None:
    message = ext_proc.ProcessingRequest()
    struct = struct_pb2.Struct()
    struct.update({"key": value})
    message.metadata_context.filter_metadata["ns"].CopyFrom(struct)
    message.attributes["envoy.filters.http.ext_proc"].CopyFrom(struct)
    assert metadata_of(message) == {"ns": {"key": value}}
    assert attributes_of(message) == {"key": value}


def test_a_struct_value_without_a_kind_is_null() -> None:
    message = ext_proc.ProcessingRequest()
    message.metadata_context.filter_metadata["ns"].fields["key"].SetInParent()
    assert metadata_of(message) == {"ns": {"key": None}}


def test_modes_come_with_the_first_message_whatever_it_is() -> None:
    desk = Desk()
    config = {"request_body_mode": "BUFFERED", "response_body_mode": "NONE"}
    message = request(request_headers=headers(**{":path": "/v1/chat/completions"}), protocol_config=config)
    assert dispatch(desk.exchange, message, 1.0) == [HeadersReply(request=True)]
    desk.renew()
    message = request(request_body={"body": "eHg=", "end_of_stream": True}, protocol_config=config)
    [reply] = dispatch(desk.exchange, message, 1.0)
    assert isinstance(reply, BodyReply)


def test_no_modes_are_full_duplex() -> None:
    desk = Desk()
    assert dispatch(desk.exchange, request(request_headers=headers(**{":path": "/v1/chat/completions"})), 1.0) == []
    body = ext_proc.ProcessingRequest()
    body.request_body.body = chat()
    body.request_body.end_of_stream = True
    head, chunk = dispatch(desk.exchange, body, 1.0)
    assert encode(head).dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == LIST
    assert isinstance(chunk, StreamedReply) and chunk.end_of_stream


def test_every_kind_of_message_reaches_the_exchange() -> None:
    desk = Desk(BUFFERED, STREAMED)
    attributes = {"response.code_details": "via_upstream", "upstream.address": ADDRESSES[1]}
    for message, kind in [
        (request(request_headers=headers(**{":path": "/v1/models", ":method": "GET"})), HeadersReply),
        (request(request_body={"end_of_stream": True}), BodyReply),
        (request(request_trailers={}), TrailersReply),
        (
            request(
                response_headers=headers(**{":status": "200"}), attributes={"envoy.filters.http.ext_proc": attributes}
            ),
            HeadersReply,
        ),
        (request(response_body={"end_of_stream": True}), BodyReply),
        (request(response_trailers={}), TrailersReply),
    ]:
        [reply] = dispatch(desk.exchange, message, 1.0)
        assert type(reply) is kind
    assert desk.in_flight() == {ADDRESSES[1]: 1}


def test_a_message_of_a_kind_unknown_is_not_answered() -> None:
    assert dispatch(Desk().exchange, ext_proc.ProcessingRequest(), 1.0) == []


def test_grpc_framing_is_kept() -> None:
    desk = Desk(5, 5)
    dispatch(desk.exchange, request(request_headers=headers(**{"content-type": "application/grpc"})), 1.0)
    message = request(request_body={"body": "eHg=", "grpc_message_compressed": True})
    [reply] = dispatch(desk.exchange, message, 1.0)
    assert streamed_response(reply) == {
        "body": "eHg=",
        "grpc_message_compressed": True,
    }
    message = request(request_body={"end_of_stream": True, "end_of_stream_without_message": True})
    [reply] = dispatch(desk.exchange, message, 1.0)
    assert streamed_response(reply) == {
        "end_of_stream": True,
        "end_of_stream_without_message": True,
    }


MUTATION = Mutation(
    set_headers=[("x-gateway-destination-endpoint", "10.0.0.1:1"), ("content-length", "7")],
    remove_headers=["x-bad"],
    destination="10.0.0.1:1",
    clear_route_cache=True,
)
COMMON = {
    "header_mutation": {
        "set_headers": [
            {
                "header": {"key": "x-gateway-destination-endpoint", "raw_value": "MTAuMC4wLjE6MQ=="},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            },
            {"header": {"key": "content-length", "raw_value": "Nw=="}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"},
        ],
        "remove_headers": ["x-bad"],
    },
    "clear_route_cache": True,
}
METADATA = {"envoy.lb": {"x-gateway-destination-endpoint": "10.0.0.1:1"}}


@pytest.mark.parametrize(
    ("reply", "wire"),
    [
        (HeadersReply(request=True), {"request_headers": {}}),
        (HeadersReply(request=False), {"response_headers": {}}),
        (
            HeadersReply(request=True, mutation=MUTATION),
            {"request_headers": {"response": COMMON}, "dynamic_metadata": METADATA},
        ),
        (
            HeadersReply(request=False, mode_override=ModeOverride(request=DUPLEX, response=STREAMED)),
            {
                "response_headers": {},
                "mode_override": {"request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "STREAMED"},
            },
        ),
        (
            HeadersReply(request=True, mode_override=ModeOverride(request=NONE, response=NONE)),
            {"request_headers": {}, "mode_override": {}},
        ),
        (BodyReply(request=True), {"request_body": {}}),
        (BodyReply(request=False), {"response_body": {}}),
        (
            BodyReply(request=True, mutation=MUTATION, body=b""),
            {"request_body": {"response": {**COMMON, "body_mutation": {"body": ""}}}, "dynamic_metadata": METADATA},
        ),
        (
            StreamedReply(request=False, chunk=b"xx", end_of_stream=True),
            {
                "response_body": {
                    "response": {"body_mutation": {"streamed_response": {"body": "eHg=", "end_of_stream": True}}}
                }
            },
        ),
        (
            StreamedReply(request=True, chunk=b"", end_of_stream=False),
            {"request_body": {"response": {"body_mutation": {"streamed_response": {}}}}},
        ),
        (TrailersReply(request=True), {"request_trailers": {}}),
        (TrailersReply(request=False), {"response_trailers": {}}),
        (
            TrailersReply(request=True, destination="10.0.0.1:1"),
            {"request_trailers": {}, "dynamic_metadata": METADATA},
        ),
        (
            ImmediateReply(
                status=503, body=b"xx", set_headers=[("content-type", "text/x")], grpc_status=14, details="poolpilot_x"
            ),
            {
                "immediate_response": {
                    "status": {"code": "ServiceUnavailable"},
                    "headers": {
                        "set_headers": [
                            {
                                "header": {"key": "content-type", "raw_value": "dGV4dC94"},
                                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                            }
                        ]
                    },
                    "body": "eHg=",
                    "grpc_status": {"status": 14},
                    "details": "poolpilot_x",
                }
            },
        ),
    ],
)
def test_encoding(reply: Reply, wire: dict[str, Any]) -> None:
    encoded = ext_proc.ProcessingResponse.FromString(encode(reply).SerializeToString())
    assert encoded == json_format.ParseDict(wire, ext_proc.ProcessingResponse())


def test_an_override_says_both_modes() -> None:
    """Unset would mean NONE; NONE is the number 0, so the message must be there even where all of it is 0."""
    encoded = encode(HeadersReply(request=True, mode_override=ModeOverride(request=NONE, response=NONE)))
    assert encoded.HasField("mode_override")


def test_an_empty_body_replaces_the_body() -> None:
    encoded = encode(BodyReply(request=True, body=b""))
    assert encoded.request_body.response.body_mutation.WhichOneof("mutation") == "body"
