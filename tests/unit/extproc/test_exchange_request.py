"""Every body mode and situation of the request side: when the pick is given, how, and what else is changed."""

from __future__ import annotations

import msgspec
import pytest

from exchange_desk import (
    ADDRESSES,
    BUFFERED,
    CHAT_PATH,
    DUPLEX,
    GRPC,
    NONE,
    PARTIAL,
    STREAMED,
    Desk,
    chat,
    joined,
    message_of,
    picked,
    plain,
    refused,
    set_headers,
)
from poolpilot_picker.extproc.exchange import ExchangeSettings
from poolpilot_picker.extproc.replies import (
    CHUNK_BYTES,
    BodyMode,
    BodyReply,
    HeadersReply,
    ModeOverride,
    StreamedReply,
    TrailersReply,
)

LIST = ",".join(ADDRESSES)
HELD = [BUFFERED, PARTIAL]


@pytest.mark.parametrize("mode", HELD)
def test_held_body_is_picked_in_its_answer(mode: BodyMode) -> None:
    desk = Desk(mode)
    assert plain(desk.headers())
    assert desk.in_flight() == {}
    [reply] = desk.body(chat())
    assert isinstance(reply, BodyReply)
    assert picked(reply) == LIST
    assert reply.body is None, "the body passes as it came"
    assert set_headers(reply.mutation) == {"x-gateway-destination-endpoint": LIST}
    assert desk.in_flight() == {ADDRESSES[0]: 1}


@pytest.mark.parametrize("mode", [None, DUPLEX])
def test_duplex_answers_nothing_until_the_body_is_there(mode: BodyMode | None) -> None:
    """No protocol_config means full duplex: the Endpoint Picker Protocol's own mode."""
    desk = Desk(mode)
    body = chat()
    assert desk.headers() == []
    assert desk.body(body[:10], end=False) == []
    assert desk.body(body[10:30], end=False) == []
    head, *chunks = desk.body(body[30:])
    assert isinstance(head, HeadersReply) and picked(head) == LIST
    assert joined(chunks, request=True) == (body, True)
    assert [len(chunk.chunk) for chunk in chunks if isinstance(chunk, StreamedReply)] == [10, 20, len(body) - 30]


def test_duplex_end_of_stream_in_a_message_of_its_own() -> None:
    desk = Desk(DUPLEX)
    desk.headers()
    assert desk.body(chat(), end=False) == []
    _, *chunks = desk.body(b"")
    assert joined(chunks, request=True) == (chat(), True)


def test_a_second_end_of_stream_is_ignored() -> None:
    desk = Desk(DUPLEX)
    desk.headers()
    desk.body(chat())
    assert desk.body(chat()) == []
    assert desk.body(b"") == []
    assert desk.events() == {"duplicate-end-of-stream": 2}
    assert desk.in_flight() == {ADDRESSES[0]: 1}


@pytest.mark.parametrize("mode", HELD)
def test_a_second_held_body_is_answered_and_not_placed(mode: BodyMode) -> None:
    desk = Desk(mode)
    desk.headers()
    desk.body(chat())
    assert plain(desk.body(chat()))
    assert desk.policy.calls == 1


@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * 2**20])
def test_large_bodies_leave_in_chunks(length: int) -> None:
    desk = Desk(DUPLEX)
    desk.headers("/upload", content_type="application/octet-stream")
    body = bytes(index & 255 for index in range(1021)) * (length // 1021 + 1)
    replies = desk.body(body[:length])
    assert joined(replies, request=True) == (body[:length], True)
    assert all(len(one.chunk) <= CHUNK_BYTES for one in replies if isinstance(one, StreamedReply))
    assert len(replies) == 1 + max(1, -(-length // CHUNK_BYTES))


def test_duplex_restores_the_content_length() -> None:
    """Envoy drops it in full duplex unless the picker sets it."""
    desk = Desk(DUPLEX)
    body = chat()
    desk.headers(content_length=str(len(body)))
    head, *_ = desk.body(body)
    assert isinstance(head, HeadersReply)
    assert set_headers(head.mutation)["content-length"] == str(len(body))


def test_duplex_sets_no_content_length_where_there_was_none() -> None:
    desk = Desk(DUPLEX)
    desk.headers()
    head, *_ = desk.body(chat())
    assert isinstance(head, HeadersReply)
    assert "content-length" not in set_headers(head.mutation)


def test_duplex_body_above_the_limit_is_placed_on_its_beginning() -> None:
    desk = Desk(DUPLEX, settings=ExchangeSettings(max_body_bytes=1_000))
    body = chat("word " * 1_000)
    desk.headers(content_length=str(len(body)))
    assert desk.body(body[:900], end=False) == []
    head, *chunks = desk.body(body[900:1_100], end=False)
    assert isinstance(head, HeadersReply) and picked(head) == LIST
    assert set_headers(head.mutation)["content-length"] == str(len(body)), "the rest passes unchanged"
    assert joined(chunks, request=True) == (body[:1_100], False)
    assert joined(desk.body(body[1_100:2_000], end=False), request=True) == (body[1_100:2_000], False)
    assert joined(desk.body(body[2_000:]), request=True) == (body[2_000:], True)
    assert desk.exchange.placement is not None
    request = desk.exchange.placement.request
    assert not request.complete and request.model == "m"
    assert request.prompt_tokens > 900, "extrapolated by the content length"


@pytest.mark.parametrize("mode", [None, NONE, STREAMED, *HELD, DUPLEX])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_without_a_body_the_pick_is_in_the_answer_to_the_headers(mode: BodyMode | None, method: str) -> None:
    desk = Desk(mode)
    [reply] = desk.headers("/v1/models", method=method, end=True, content_type="")
    assert isinstance(reply, HeadersReply)
    assert picked(reply) == LIST
    assert reply.mode_override is None
    assert desk.in_flight() == {ADDRESSES[0]: 1}


@pytest.mark.parametrize("mode", HELD)
def test_an_inference_call_without_a_body_is_the_engines_to_refuse(mode: BodyMode) -> None:
    """`content-length: 0`: no body message will come, so waiting for one would hang."""
    desk = Desk(mode)
    [reply] = desk.headers(end=True, content_length="0")
    assert picked(reply) == LIST


@pytest.mark.parametrize("mode", HELD)
def test_chunked_but_empty_body_of_an_upload(mode: BodyMode) -> None:
    desk = Desk(mode)
    assert plain(desk.headers("/upload", content_type="text/plain"))
    [reply] = desk.body(b"")
    assert picked(reply) == LIST


def test_chunked_but_empty_body_in_duplex() -> None:
    desk = Desk(DUPLEX)
    assert desk.headers("/upload", content_type="text/plain") == []
    head, chunk = desk.body(b"")
    assert picked(head) == LIST
    assert chunk == StreamedReply(request=True, chunk=b"", end_of_stream=True)


@pytest.mark.parametrize("mode", [*HELD, DUPLEX])
def test_chunked_but_empty_body_of_an_inference_call(mode: BodyMode) -> None:
    desk = Desk(mode)
    desk.headers()
    reply = refused(desk.body(b""))
    assert reply.status == 400
    assert "unexpected end of JSON input" in message_of(reply)


@pytest.mark.parametrize("mode", [NONE, STREAMED])
def test_modes_that_do_not_wait_are_picked_at_the_headers(mode: BodyMode) -> None:
    desk = Desk(mode)
    [reply] = desk.headers()
    assert isinstance(reply, HeadersReply)
    assert picked(reply) == LIST and reply.mode_override is None


def test_streamed_chunks_are_answered_in_form() -> None:
    desk = Desk(STREAMED)
    desk.headers()
    assert plain(desk.body(b"not json", end=False))
    assert plain(desk.body(b"at all"))
    assert plain(desk.body(b""))
    assert desk.policy.calls == 1


def test_partial_overflow_places_on_the_prefix() -> None:
    desk = Desk(PARTIAL)
    body = chat("word " * 30_000)
    assert plain(desk.headers(content_length=str(len(body))))
    [reply] = desk.body(body[:65_536], end=False)
    assert isinstance(reply, BodyReply)
    assert picked(reply) == LIST and reply.body is None
    assert desk.exchange.placement is not None
    request = desk.exchange.placement.request
    assert request.model == "m" and not request.complete
    assert request.prompt_tokens > 25_000


def test_partial_overflow_never_rewrites() -> None:
    """A body mutation would replace the prefix only."""
    desk = Desk(PARTIAL)
    body = chat("word " * 30_000)
    desk.headers(content_length=str(len(body)), x_gateway_model_name_rewrite="target")
    [reply] = desk.body(body[:65_536], end=False)
    assert isinstance(reply, BodyReply)
    assert reply.body is None
    assert "content-length" not in set_headers(reply.mutation)


def test_partial_overflow_without_the_model_takes_the_hint() -> None:
    desk = Desk(PARTIAL)
    desk.headers(x_gateway_model_name="hinted")
    desk.body(b'{"messages":[{"role":"user","content":"' + b"word " * 20_000, end=False)
    assert desk.exchange.placement is not None
    assert desk.exchange.placement.request.model == "hinted"


def test_partial_overflow_of_nonsense_is_not_refused() -> None:
    desk = Desk(PARTIAL)
    desk.headers()
    [reply] = desk.body(b"\xff" * 70_000, end=False)
    assert picked(reply) == LIST


@pytest.mark.parametrize("mode", HELD)
def test_a_body_that_trailers_end_is_whole(mode: BodyMode) -> None:
    """The end of stream is the trailers' then. BUFFERED never sends less than the whole body."""
    desk = Desk(mode)
    body = chat()
    desk.headers(content_length=str(len(body)), x_gateway_model_name_rewrite="target")
    [reply] = desk.body(body, end=False)
    assert isinstance(reply, BodyReply) and picked(reply) == LIST
    assert reply.body == chat(model="target")
    assert desk.trailers() == [TrailersReply(request=True)]


def test_trailers_end_a_duplex_body() -> None:
    desk = Desk(DUPLEX)
    desk.headers(x_gateway_model_name_rewrite="target")
    assert desk.body(chat()[:20], end=False) == []
    assert desk.body(chat()[20:], end=False) == []
    head, *chunks, last = desk.trailers()
    assert picked(head) == LIST
    assert joined(chunks, request=True) == (chat(model="target"), False)
    assert last == TrailersReply(request=True)
    assert desk.in_flight() == {ADDRESSES[0]: 1}


def test_trailers_after_a_duplex_body() -> None:
    desk = Desk(DUPLEX)
    desk.headers()
    desk.body(chat())
    assert desk.trailers() == [TrailersReply(request=True)]


def test_trailers_without_any_body_in_duplex() -> None:
    desk = Desk(DUPLEX)
    desk.headers("/upload", content_type="text/plain")
    head, last = desk.trailers()
    assert picked(head) == LIST and last == TrailersReply(request=True)


@pytest.mark.parametrize("mode", HELD)
def test_trailers_without_any_body(mode: BodyMode) -> None:
    """Headers can no longer be changed: the pick goes out as metadata."""
    desk = Desk(mode)
    desk.headers("/upload", content_type="text/plain")
    [reply] = desk.trailers()
    assert reply == TrailersReply(request=True, destination=LIST)


def test_trailers_end_a_malformed_duplex_body() -> None:
    desk = Desk(DUPLEX)
    desk.headers()
    desk.body(b"{", end=False)
    assert refused(desk.trailers()).status == 400


UNSEEN = {
    "websocket": {"method": "GET", "connection": "Upgrade", "upgrade": "websocket", "content_type": ""},
    "connect": {"method": "CONNECT", "content_type": ""},
    "grpc": {"content_type": "application/grpc"},
}


@pytest.mark.parametrize("response_mode", [NONE, BUFFERED])
@pytest.mark.parametrize("mode", HELD)
@pytest.mark.parametrize("fields", UNSEEN.values(), ids=UNSEEN)
def test_what_never_ends_is_picked_at_the_headers(
    fields: dict[str, str], mode: BodyMode, response_mode: BodyMode
) -> None:
    """And its body is asked for no more: every buffering mode would hang (the response's mode is repeated)."""
    desk = Desk(mode, response_mode)
    [reply] = desk.headers("/service/Method", **fields)  # type: ignore[arg-type]
    assert isinstance(reply, HeadersReply)
    assert picked(reply) == LIST
    assert reply.mode_override == ModeOverride(request=NONE, response=response_mode)
    assert plain(desk.body(b"late", end=False)), "a message on its way is answered"


@pytest.mark.parametrize("mode", [NONE, STREAMED])
@pytest.mark.parametrize("fields", UNSEEN.values(), ids=UNSEEN)
def test_modes_that_cannot_hang_are_not_overridden(fields: dict[str, str], mode: BodyMode) -> None:
    desk = Desk(mode)
    [reply] = desk.headers("/service/Method", **fields)  # type: ignore[arg-type]
    assert isinstance(reply, HeadersReply)
    assert picked(reply) == LIST and reply.mode_override is None


@pytest.mark.parametrize("fields", UNSEEN.values(), ids=UNSEEN)
def test_what_never_ends_passes_in_duplex(fields: dict[str, str]) -> None:
    desk = Desk(DUPLEX, DUPLEX)
    [reply] = desk.headers("/service/Method", **fields)  # type: ignore[arg-type]
    assert isinstance(reply, HeadersReply)
    assert picked(reply) == LIST and reply.mode_override is None, "an override would be ignored"
    assert joined(desk.body(b"one", end=False), request=True) == (b"one", False)
    assert joined(desk.body(b"x" * 70_000, end=False), request=True) == (b"x" * 70_000, False)
    assert joined(desk.body(b""), request=True) == (b"", True)


def test_grpc_messages_stay_whole() -> None:
    desk = Desk(GRPC, GRPC)
    [reply] = desk.headers("/service/Method", content_type="application/grpc")
    assert picked(reply) == LIST
    message = b"m" * 200_000
    assert desk.body(message, end=False) == [StreamedReply(request=True, chunk=message, end_of_stream=False)]
    desk.answer()
    assert desk.answer_body(message) == [StreamedReply(request=False, chunk=message, end_of_stream=False)]
    assert desk.answer_body(b"", end=True) == [StreamedReply(request=False, chunk=b"", end_of_stream=True)]


def test_a_mode_nobody_knows_yet_counts_as_duplex() -> None:
    desk = Desk(9, 17)
    assert desk.headers() == []
    head, *chunks = desk.body(chat())
    assert picked(head) == LIST and joined(chunks, request=True) == (chat(), True)


def test_modes_count_in_the_first_message_only() -> None:
    desk = Desk(BUFFERED)
    desk.headers()
    desk.exchange.set_modes(DUPLEX, DUPLEX)
    [reply] = desk.body(chat())
    assert isinstance(reply, BodyReply)


# ── bodies that are no inference call ────────────────────────────────────────

FORM = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
FORM_TYPE = "multipart/form-data; boundary=b"
OPAQUE = {
    "multipart": ("/v1/audio/transcriptions", FORM_TYPE, "", FORM, "whisper"),
    "gzip": (CHAT_PATH, "application/json", "gzip", b"\x1f\x8b\x08rubbish", ""),
    "unknown path": ("/custom/route", "application/json", "", b'{"model":"x"}', "x"),
    "not json": ("/custom/route", "application/json", "", b"{{{{", ""),
    "text": (CHAT_PATH, "text/plain", "", b"hello", ""),
    "binary": ("/upload", "application/octet-stream", "", bytes(range(256)), ""),
}


@pytest.mark.parametrize("mode", [*HELD, DUPLEX])
@pytest.mark.parametrize("case", OPAQUE.values(), ids=OPAQUE)
def test_other_bodies_are_routed_and_never_refused(case: tuple[str, str, str, bytes, str], mode: BodyMode) -> None:
    path, content_type, encoding, body, model = case
    desk = Desk(mode)
    desk.headers(path, content_type=content_type, content_encoding=encoding)
    replies = desk.body(body)
    assert picked(replies[0]) == LIST
    if mode is DUPLEX:
        assert joined(replies, request=True) == (body, True)
    assert desk.exchange.placement is not None
    assert desk.exchange.placement.request.model == model
    assert not desk.exchange.placement.observe, "nothing is learned from it"


# ── rewriting ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", HELD)
def test_rewritten_body(mode: BodyMode) -> None:
    desk = Desk(mode)
    desk.headers(x_gateway_model_name_rewrite="a much longer target")
    [reply] = desk.body(chat())
    assert isinstance(reply, BodyReply)
    wanted = chat(model="a much longer target")
    assert reply.body == wanted
    assert set_headers(reply.mutation)["content-length"] == str(len(wanted))


def test_rewritten_body_in_duplex() -> None:
    desk = Desk(DUPLEX)
    body, wanted = chat("word " * 30_000), chat("word " * 30_000, model="target")
    desk.headers(content_length=str(len(body)), x_llm_d_model_name_rewrite="target")
    desk.body(body[:1_000], end=False)
    head, *chunks = desk.body(body[1_000:])
    assert isinstance(head, HeadersReply)
    assert set_headers(head.mutation)["content-length"] == str(len(wanted))
    assert joined(chunks, request=True) == (wanted, True)
    assert len(chunks) == 3


@pytest.mark.parametrize("mode", [*HELD, DUPLEX])
def test_a_rewrite_to_the_same_model_changes_nothing(mode: BodyMode) -> None:
    desk = Desk(mode)
    body = b'  {"model" : "m", "messages":[{"role":"user","content":"\\u00e9"}]}\n'
    desk.headers(x_llm_d_model_name_rewrite="m")
    replies = desk.body(body)
    if mode is DUPLEX:
        assert joined(replies, request=True) == (body, True)
    else:
        assert isinstance(replies[0], BodyReply) and replies[0].body is None


# ── headers ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [*HELD, DUPLEX])
def test_a_request_id_is_made_where_there_is_none(mode: BodyMode) -> None:
    desk = Desk(mode)
    desk.headers(x_request_id="")
    reply = desk.body(chat())[0]
    assert isinstance(reply, HeadersReply | BodyReply)
    assert set_headers(reply.mutation)["x-request-id"] == "made-id"


def test_a_request_id_is_kept() -> None:
    desk = Desk(BUFFERED)
    desk.headers(x_request_id="theirs")
    [reply] = desk.body(chat())
    assert isinstance(reply, BodyReply)
    assert "x-request-id" not in set_headers(reply.mutation)
    assert desk.exchange.placement is not None
    assert desk.exchange.placement.request.request_id == "theirs"


def test_headers_that_only_a_picker_may_set_are_removed() -> None:
    desk = Desk(BUFFERED, settings=ExchangeSettings(strip_headers=("x-internal",)))
    spoofed = {
        "x-prefiller-host-port": "6.6.6.6:1",
        "x-encoder-hosts-ports": "6.6.6.6:1",
        "x-data-parallel-host-port": "6.6.6.6:1",
        "x-kv-cache-source-host-port": "6.6.6.6:1",
        "x-gateway-destination-endpoint-served": "6.6.6.6:1",
        "x-gateway-destination-endpoint-subset": "6.6.6.6:1",
        "x-internal": "yes",
    }
    desk.headers(x_gateway_destination_endpoint="6.6.6.6:1", **spoofed)
    [reply] = desk.body(chat())
    assert isinstance(reply, BodyReply)
    assert set(reply.mutation.remove_headers) == set(spoofed)
    assert picked(reply) == LIST, "and the destination is overwritten"


def test_nothing_is_removed_that_did_not_come() -> None:
    desk = Desk(BUFFERED, settings=ExchangeSettings(strip_headers=("x-internal",)))
    desk.headers()
    [reply] = desk.body(chat())
    assert isinstance(reply, BodyReply)
    assert list(reply.mutation.remove_headers) == []


@pytest.mark.parametrize("clear", [False, True])
def test_the_route_cache_is_cleared_only_on_request(clear: bool) -> None:
    desk = Desk(BUFFERED, settings=ExchangeSettings(clear_route_cache=clear))
    desk.headers()
    [reply] = desk.body(chat())
    assert isinstance(reply, BodyReply)
    assert reply.mutation.clear_route_cache is clear


def test_values_that_are_not_text_are_survived() -> None:
    desk = Desk(BUFFERED)
    desk.headers(
        x_request_id=b"\xff\xfe",
        user_agent=b"\x80\x81",
        content_length=b"\xc2\xb2",
        x_gateway_model_name_rewrite=b"caf\xe9",
        x_llm_d_slo_ttft_ms=b"\xff",
        x_gateway_inference_fairness_id=b"\xff",
    )
    [reply] = desk.body(chat())
    assert picked(reply) == LIST
    assert isinstance(reply, BodyReply) and reply.body is not None
    assert msgspec.json.decode(reply.body)["model"] == "caf\ufffd"
    desk.close()
    desk.settled()


# ── the subset hint ──────────────────────────────────────────────────────────


def hint(value: object) -> dict[str, dict[str, object]]:
    """Metadata with a subset hint."""
    return {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": value}}


@pytest.mark.parametrize("mode", HELD)
@pytest.mark.parametrize("where", ["headers", "body"])
def test_subset_from_either_message(mode: BodyMode, where: str) -> None:
    desk = Desk(mode)
    desk.headers(metadata=hint([ADDRESSES[1]]) if where == "headers" else None)
    [reply] = desk.body(chat(), metadata=hint([ADDRESSES[1]]) if where == "body" else None)
    assert picked(reply) == ADDRESSES[1]


def test_the_later_hint_counts() -> None:
    desk = Desk(DUPLEX)
    desk.headers(metadata=hint([ADDRESSES[0]]))
    desk.body(chat()[:9], end=False, metadata=hint([ADDRESSES[2]]))
    head, *_ = desk.body(chat()[9:])
    assert picked(head) == ADDRESSES[2]


def test_header_only_requests_take_the_hint_too() -> None:
    desk = Desk(BUFFERED)
    [reply] = desk.headers("/v1/models", method="GET", end=True, metadata=hint([ADDRESSES[2]]))
    assert picked(reply) == ADDRESSES[2]


@pytest.mark.parametrize(
    "value", [[], [""], "", "10.9.9.9:1", ["10.9.9.9:1"], 7.0, True, [1.0, 2.0], {"a": "b"}, [["10.0.0.1:8000"]]]
)
def test_a_hint_that_names_no_endpoint_of_the_pool(value: object) -> None:
    desk = Desk(BUFFERED)
    desk.headers(metadata=hint(value))
    reply = refused(desk.body(chat()))
    assert reply.status == 503
    assert message_of(reply) == (
        "inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request"
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {"envoy.lb.subset_hint": {}},
        {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": None}},
        {"envoy.lb.subset_hint": {"other": ["10.9.9.9:1"]}},
        {"envoy.lb": {"x-gateway-destination-endpoint-subset": ["10.9.9.9:1"]}},
    ],
)
def test_no_hint_allows_the_whole_pool(metadata: dict[str, dict[str, object]]) -> None:
    desk = Desk(BUFFERED)
    desk.headers(metadata=metadata)
    [reply] = desk.body(chat())
    assert picked(reply) == LIST
