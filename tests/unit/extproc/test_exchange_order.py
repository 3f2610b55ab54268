"""Messages in any order, also ones that make no sense: never a crash, never two bookings, one release at the end."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exchange_desk import ADDRESSES, CHAT_PATH, DUPLEX, VIA_UPSTREAM, Desk, chat, joined, plain
from poolpilot_picker.extproc.replies import BodyMode, BodyReply, HeadersReply, ImmediateReply, StreamedReply

MODES = [None, *BodyMode, 9, -1]
BODIES = [b"", b"{", b"\xff", chat(), chat(stream=True), chat()[:20], b"data: [DONE]\n\n", b"x" * 70_000]
PATHS = [CHAT_PATH, "/v1/models", "/upload", "", "/v1/completions?x=1"]
CONTENT_TYPES = ["application/json", "application/grpc", "text/event-stream", "multipart/form-data; boundary=b", ""]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.sampled_from([*ADDRESSES, "", 1.0, None]), max_size=3),  # type: ignore[arg-type]
    st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "envoy.lb": st.fixed_dictionaries({}, optional={"x-gateway-destination-endpoint-served": VALUES}),
        "envoy.lb.subset_hint": st.fixed_dictionaries({}, optional={"x-gateway-destination-endpoint-subset": VALUES}),
    },
)
ATTRIBUTES = st.one_of(
    st.sampled_from([{**VIA_UPSTREAM, "upstream.address": address} for address in ADDRESSES]),
    st.fixed_dictionaries(
        {},
        optional={
            "response.code_details": VALUES,
            "upstream.address": VALUES,
            "upstream.request_attempt_count": VALUES,
        },
    ),
)
RAW = st.one_of(st.sampled_from(["", "Upgrade", "websocket", "gzip", "12", "if-available"]), st.binary(max_size=6))
FIELDS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            "x_request_id",
            "content_length",
            "content_encoding",
            "connection",
            "upgrade",
            "x_gateway_model_name_rewrite",
            "x_llm_d_slo_ttft_ms",
            "test_epp_endpoint_selection",
            "x_prefiller_host_port",
            "prefer",
        ),
        RAW,
    ),
)
STATUSES = st.sampled_from(["200", "101", "404", "503", "", b"\xff\xff\xff", "\u00b2\u00b2\u00b2"])
MESSAGES = st.one_of(
    st.tuples(
        st.just("headers"),
        st.builds(
            dict,
            path=st.sampled_from(PATHS),
            end=st.booleans(),
            method=st.sampled_from(["POST", "GET", "CONNECT", ""]),
            content_type=st.sampled_from(CONTENT_TYPES),
            metadata=METADATA,
        ).flatmap(lambda known: FIELDS.map(lambda more: {**known, **more})),
    ),
    st.tuples(st.just("body"), st.builds(dict, chunk=st.sampled_from(BODIES), end=st.booleans(), metadata=METADATA)),
    st.tuples(st.just("trailers"), st.just({})),
    st.tuples(
        st.just("answer"),
        st.builds(
            dict,
            status=STATUSES,
            end=st.booleans(),
            attributes=ATTRIBUTES,
            metadata=METADATA,
            content_type=st.sampled_from(CONTENT_TYPES),
        ),
    ),
    st.tuples(st.just("answer_body"), st.builds(dict, chunk=st.sampled_from(BODIES), end=st.booleans())),
    st.tuples(st.just("answer_trailers"), st.just({})),
    st.tuples(st.just("give_up"), st.just({})),
)


@pytest.mark.parametrize("observe", [False, True])
@given(
    modes=st.tuples(st.sampled_from(MODES), st.sampled_from(MODES)),
    messages=st.lists(MESSAGES, max_size=8),
    fails=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_messages(
    observe: bool, modes: tuple[int | None, int | None], messages: list[tuple[str, dict[str, Any]]], fails: bool
) -> None:
    desk = Desk(*modes, observe=observe)
    if fails:
        desk.policy.error = ZeroDivisionError("prediction")
    for kind, arguments in messages:
        if kind == "give_up":
            desk.exchange.give_up(desk.now)
        else:
            for reply in getattr(desk, kind)(**arguments):
                _is_sound(reply)
        desk.now += 7.0
        assert sum(desk.in_flight().values()) == (desk.exchange.placement is not None)
        assert desk.policy.calls <= 1
    desk.close()
    desk.settled()
    desk.close()
    for kind, arguments in messages:
        if kind != "give_up":
            assert getattr(desk, kind)(**arguments) == [], "nothing is said after the end"
    desk.settled()
    assert desk.policy.calls <= 1
    assert sum(desk.outcomes().values()) == (desk.exchange.placement is not None)


def _is_sound(reply: object) -> None:
    if isinstance(reply, HeadersReply | BodyReply):
        fields = dict(reply.mutation.set_headers)
        assert fields.get("x-gateway-destination-endpoint", "") == reply.mutation.destination
        assert "" not in fields and all(fields.values())
    elif isinstance(reply, ImmediateReply):
        assert reply.status in (400, 412, 429, 500, 503)
    elif isinstance(reply, StreamedReply):
        assert reply.chunk is not None


@given(
    body=st.sampled_from([chat("word " * 2_000), chat("\u6c34" * 5_000), chat()]),
    cuts=st.lists(st.integers(0, 12_000), max_size=6),
    last_is_empty=st.booleans(),
    rewrite=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_duplex_bodies_cut_anywhere(body: bytes, cuts: list[int], last_is_empty: bool, rewrite: bool) -> None:
    """However the body is cut, the pick is the same and the bytes that go on are whole."""
    desk = Desk(DUPLEX)
    desk.headers(**{"x_gateway_model_name_rewrite": "target"} if rewrite else {})
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    chunks = [body[start:end] for start, end in itertools.pairwise(places)]
    if last_is_empty:
        chunks.append(b"")
    for chunk in chunks[:-1]:
        assert desk.body(chunk, end=False) == []
    replies = desk.body(chunks[-1])
    wanted = body.replace(b'"model":"m"', b'"model":"target"') if rewrite else body
    assert joined(replies, request=True) == (wanted, True)


# ── the senseless cases by name ──────────────────────────────────────────────


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_a_body_without_headers_is_placed_by_load(mode: BodyMode) -> None:
    """A data plane that is configured not to send them. What is not known cannot be refused."""
    desk = Desk(mode)
    [reply] = desk.body(b"not json")
    assert isinstance(reply, BodyReply)
    assert reply.mutation.destination == ",".join(ADDRESSES)
    assert "x-request-id" not in dict(reply.mutation.set_headers), "the client may have sent one"
    desk.close()
    desk.settled()


def test_a_duplex_body_without_headers_passes_unpicked() -> None:
    """There are no headers to answer with a pick."""
    desk = Desk(DUPLEX)
    assert joined(desk.body(b"abc", end=False), request=True) == (b"abc", False)
    assert joined(desk.body(b"def"), request=True) == (b"def", True)
    assert desk.events() == {"unexpected-request-body": 2}
    assert desk.in_flight() == {}


@pytest.mark.parametrize("mode", [None, *BodyMode])
def test_trailers_without_headers(mode: BodyMode | None) -> None:
    desk = Desk(mode)
    assert plain(desk.trailers())
    assert desk.in_flight() == {}


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.STREAMED])
def test_headers_twice(mode: BodyMode) -> None:
    desk = Desk(mode)
    desk.headers("/v1/models", end=True)
    assert plain(desk.headers("/v1/models", end=True))
    assert desk.policy.calls == 1
    assert desk.events() == {"unexpected-request-headers": 1}


@pytest.mark.parametrize("mode", [*BodyMode])
def test_a_request_after_its_answer_is_not_placed(mode: BodyMode) -> None:
    desk = Desk(mode)
    desk.answer("403", attributes={"response.code_details": "rbac_access_denied_matched_policy[none]"})
    desk.headers()
    desk.body(chat())
    desk.trailers()
    assert desk.policy.calls == 0
    desk.close()
    desk.settled()
