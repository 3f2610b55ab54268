"""The response side: who answered, what may be learned from it, what is watched, and that bookings are released."""

from __future__ import annotations

import msgspec
import pytest

from exchange_desk import (
    ADDRESSES,
    BUFFERED,
    DUPLEX,
    NONE,
    PARTIAL,
    STREAMED,
    VIA_UPSTREAM,
    Desk,
    chat,
    joined,
    plain,
)
from poolpilot_picker.extproc.exchange import ExchangeSettings
from poolpilot_picker.extproc.replies import BodyMode, BodyReply, HeadersReply, ModeOverride, TrailersReply
from poolpilot_picker.flow.outcome import Outcome

FIRST, SECOND, _ = ADDRESSES
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":7,"total_tokens":57}}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = msgspec.json.encode({"choices": [{"text": "hi"}], "usage": {"prompt_tokens": 50, "completion_tokens": 7}})


def placed(request_mode: BodyMode = BUFFERED, response_mode: BodyMode = NONE, **options: object) -> Desk:
    """A desk whose exchange waits for its answer."""
    desk = Desk(request_mode, response_mode, **options)  # type: ignore[arg-type]
    desk.headers()
    desk.body(chat("Tell me of the sea. " * 20, stream=True))
    assert desk.in_flight() == {FIRST: 1}
    return desk


@pytest.mark.parametrize("response_mode", [NONE, DUPLEX])
@pytest.mark.parametrize("request_mode", [BUFFERED, PARTIAL, DUPLEX])
def test_a_whole_exchange(request_mode: BodyMode, response_mode: BodyMode) -> None:
    desk = placed(request_mode, response_mode)
    assert plain(desk.answer())
    assert desk.in_flight() == {FIRST: 1}, "headers are not the end"
    if response_mode is DUPLEX:
        assert joined(desk.answer_body(WORD), request=False) == (WORD, False)
        assert joined(desk.answer_body(DONE, end=True), request=False) == (DONE, True)
    desk.now += 500.0
    desk.close()
    desk.settled()
    assert desk.outcomes() == {"served": 1}
    assert desk.value("llm_d_epp_request_total", summed=True) == 1
    assert desk.value("llm_d_epp_request_duration_seconds_sum", summed=True) == 0.5
    assert desk.value("llm_d_epp_request_error_total", summed=True) == 0


def test_closing_again_does_nothing() -> None:
    desk = placed()
    desk.answer()
    for _ in range(3):
        desk.close()
    desk.settled()
    assert desk.outcomes() == {"served": 1}


def test_response_trailers_are_answered() -> None:
    desk = placed()
    desk.answer()
    assert desk.answer_trailers() == [TrailersReply(request=False)]


def test_trailers_end_a_duplex_response() -> None:
    desk = placed(DUPLEX, DUPLEX)
    desk.answer()
    assert joined(desk.answer_body(b"x" * 100_000), request=False) == (b"x" * 100_000, False)
    assert desk.answer_trailers() == [TrailersReply(request=False)]


@pytest.mark.parametrize("response_mode", [NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX])
def test_the_first_message_may_be_response_headers(response_mode: BodyMode) -> None:
    """A filter before the picker, or an upgrade the listener does not allow: answered, and nothing else."""
    desk = Desk(BUFFERED, response_mode)
    assert plain(desk.answer("403", attributes={"response.code_details": "upgrade_failed"}))
    replies = desk.answer_body(b"no", end=True)
    assert plain(replies) if response_mode is not DUPLEX else joined(replies, request=False) == (b"no", True)
    desk.close()
    desk.settled()
    assert desk.outcomes() == {} and desk.policy.calls == 0


def test_payload_too_large_after_the_headers() -> None:
    """BUFFERED above the limit: Envoy's own 413, without a body message."""
    desk = Desk(BUFFERED)
    desk.headers()
    assert plain(desk.answer("413", attributes={"response.code_details": "request_payload_too_large"}))
    desk.close()
    desk.settled()
    assert desk.policy.calls == 0


def test_abort_before_the_body() -> None:
    desk = Desk(BUFFERED)
    desk.headers()
    desk.close()
    desk.settled()
    assert desk.outcomes() == {}


def test_abort_before_the_answer() -> None:
    """Also an internal redirect: the stream ends without response headers."""
    desk = placed()
    desk.close()
    desk.settled()
    assert desk.outcomes() == {"aborted": 1}
    assert desk.learned() == {}


# ── who answered ─────────────────────────────────────────────────────────────

OUTCOMES = [
    # status, details, address, outcome, counted as
    ("200", "via_upstream", FIRST, "served", ""),
    ("101", "via_upstream", FIRST, "served", ""),
    ("302", "via_upstream", FIRST, "rejected", ""),
    ("404", "via_upstream", FIRST, "rejected", ""),
    ("429", "via_upstream", FIRST, "rejected", ""),
    ("500", "via_upstream", FIRST, "failed", "ModelServerError"),
    ("503", "via_upstream", FIRST, "failed", "ModelServerError"),
    ("", "via_upstream", FIRST, "unconfirmed", ""),
    ("503", "upstream_reset_before_response_started{connection_failure}", FIRST, "unreachable", "ModelServerError"),
    ("503", "upstream_reset_before_response_started{remote_reset}", FIRST, "unreachable", "ModelServerError"),
    ("503", "upstream_reset_before_response_started{overflow}", FIRST, "local_reply", "DataPlaneError"),
    ("504", "timeout", FIRST, "timed_out", "ModelServerError"),
    ("504", "upstream_per_try_timeout", FIRST, "timed_out", "ModelServerError"),
    ("503", "no_healthy_upstream", "", "local_reply", "DataPlaneError"),
    ("429", "local_rate_limited", "", "local_reply", ""),
    ("403", "rbac_access_denied_matched_policy[none]", "", "local_reply", ""),
    ("404", "route_not_found", "", "local_reply", ""),
    ("503", "cluster_not_found", "", "local_reply", "DataPlaneError"),
    ("418", "direct_response", "", "local_reply", ""),
    ("200", "direct_response", "", "local_reply", ""),
    ("200", "", FIRST, "local_reply", ""),
]


@pytest.mark.parametrize(("status", "details", "address", "outcome", "code"), OUTCOMES)
def test_outcomes(status: str, details: str, address: str, outcome: str, code: str) -> None:
    desk = placed(observe=True)
    attributes = {"response.code_details": details}
    if address:
        attributes["upstream.address"] = address
    [reply] = desk.answer(status, attributes=attributes)
    assert isinstance(reply, HeadersReply)
    assert (reply.mode_override is not None) == (outcome == "served"), "only a pod's own success is watched"
    desk.answer_body(ANSWER, end=True)
    desk.now += 100.0
    desk.close()
    desk.settled()
    assert desk.outcomes() == {outcome: 1}
    errors = desk.by_label("llm_d_epp_request_error_total", "error_code")
    assert errors == ({code: 1} if code else {})
    blamed = {"failing_endpoints": 1} if outcome in ("failed", "unreachable", "timed_out") else {}
    assert {name: desk.learned()[name] for name in desk.learned() if name == "failing_endpoints"} == blamed
    assert ("lengths" in desk.learned()) == ("token_scale" in desk.learned()) == (outcome == "served")


def test_the_endpoint_that_served_takes_the_booking() -> None:
    desk = placed()
    desk.answer(address=SECOND)
    assert desk.in_flight() == {SECOND: 1}
    assert desk.value("poolpilot_bookings_moved_total", pool="pool") == 1
    desk.close()
    desk.settled()


@pytest.mark.parametrize("address", ["192.168.9.9:1", "", "nonsense"])
def test_an_address_outside_the_pool_moves_nothing(address: str) -> None:
    desk = placed()
    desk.answer(attributes={**VIA_UPSTREAM, "upstream.address": address})
    assert desk.in_flight() == {FIRST: 1}
    desk.close()
    desk.settled()


def test_attributes_go_before_metadata() -> None:
    """The served metadata names the host selected last: wrong after a hedge."""
    desk = placed()
    desk.answer(
        attributes={**VIA_UPSTREAM, "upstream.address": FIRST},
        metadata={"envoy.lb": {"x-gateway-destination-endpoint-served": SECOND}},
    )
    assert desk.in_flight() == {FIRST: 1}


@pytest.mark.parametrize(
    ("status", "served", "outcome", "holder"),
    [
        ("200", SECOND, "served", SECOND),
        ("200", "", "unconfirmed", FIRST),
        ("500", SECOND, "unconfirmed", SECOND),
        ("429", FIRST, "unconfirmed", FIRST),
    ],
)
def test_metadata_where_there_are_no_attributes(status: str, served: str, outcome: str, holder: str) -> None:
    desk = placed(observe=True)
    metadata = {"envoy.lb": {"x-gateway-destination-endpoint-served": served}} if served else {}
    desk.answer(status, attributes={}, metadata=metadata)
    assert desk.in_flight() == {holder: 1}
    desk.answer_body(ANSWER, end=True)
    desk.close()
    desk.settled()
    assert desk.outcomes() == {outcome: 1}
    assert ("lengths" in desk.learned()) == (outcome == "served")


@pytest.mark.parametrize(
    "attributes",
    [
        {"response.code_details": 7.0},
        {"response.code_details": None},
        {"response.code_details": ["via_upstream"]},
        {"response.code_details": "via_upstream", "upstream.address": 9.0},
        {"response.code_details": "via_upstream", "upstream.address": FIRST, "upstream.request_attempt_count": "x"},
        {"response.code_details": "via_upstream", "upstream.address": FIRST, "upstream.request_attempt_count": None},
        {"response.code_details": "via_upstream", "upstream.address": FIRST, "upstream.request_attempt_count": -3.0},
        {"response.code_details": "via_upstream", "upstream.address": SECOND, "upstream.request_attempt_count": 1e300},
        {
            "response.code_details": "via_upstream",
            "upstream.address": SECOND,
            "upstream.request_attempt_count": float("nan"),
        },
        {
            "response.code_details": "via_upstream",
            "upstream.address": SECOND,
            "upstream.request_attempt_count": float("inf"),
        },
    ],
)
def test_absurd_attributes_are_survived(attributes: dict[str, object]) -> None:
    desk = placed()
    assert plain(desk.answer(attributes=attributes))
    desk.close()
    desk.settled()
    assert "failing_endpoints" not in desk.learned()


@pytest.mark.parametrize("metadata", [{"envoy.lb": {"x-gateway-destination-endpoint-served": 5.0}}, {"envoy.lb": {}}])
def test_absurd_metadata_is_survived(metadata: dict[str, dict[str, object]]) -> None:
    desk = placed()
    assert plain(desk.answer(attributes={}, metadata=metadata))
    assert desk.in_flight() == {FIRST: 1}


@pytest.mark.parametrize("status", [b"\xb2\x00\x00", b"", "9" * 5_000, "-20", "20x", b"200"])
def test_absurd_statuses_are_survived(status: str | bytes) -> None:
    desk = placed()
    desk.answer(status)
    desk.close()
    desk.settled()
    assert desk.outcomes() == {"served" if status == b"200" else "unconfirmed": 1}


# ── watching the response ────────────────────────────────────────────────────


@pytest.mark.parametrize("request_mode", [BUFFERED, PARTIAL])
def test_observation_overrides_the_response_mode_and_repeats_the_requests(request_mode: BodyMode) -> None:
    """Unset would mean NONE: no body message, no pick."""
    desk = placed(request_mode, NONE, observe=True)
    [reply] = desk.answer(content_type="text/event-stream")
    assert isinstance(reply, HeadersReply)
    assert reply.mode_override == ModeOverride(request=request_mode, response=STREAMED)
    assert desk.answer_body(ROLE) == [BodyReply(request=False)]


@pytest.mark.parametrize("response_mode", [NONE, DUPLEX])
def test_beside_duplex_an_override_would_be_ignored(response_mode: BodyMode) -> None:
    desk = placed(DUPLEX, response_mode, observe=True)
    assert plain(desk.answer(content_type="text/event-stream"))


@pytest.mark.parametrize("response_mode", [STREAMED, BUFFERED, PARTIAL])
def test_no_override_where_chunks_come_anyway(response_mode: BodyMode) -> None:
    desk = placed(BUFFERED, response_mode, observe=True)
    assert plain(desk.answer())
    assert desk.answer_body(ANSWER, end=True) == [BodyReply(request=False)]
    desk.close()
    assert desk.learned() == {"lengths": 1, "token_scale": 1}


def test_unwatched_exchanges_are_not_overridden() -> None:
    desk = placed(observe=False)
    assert plain(desk.answer(content_type="text/event-stream"))


@pytest.mark.parametrize("more", [{"content_encoding": "gzip"}, {"end": True}, {"status": "404"}])
def test_what_cannot_be_read_is_not_watched(more: dict[str, object]) -> None:
    desk = placed(observe=True)
    assert plain(desk.answer(**more))  # type: ignore[arg-type]


def test_first_token_and_usage_of_an_event_stream() -> None:
    desk = placed(observe=True)
    desk.now += 100.0
    desk.answer(content_type="text/event-stream; charset=utf-8")
    desk.answer_body(ROLE)
    assert desk.value("llm_d_epp_request_ttft_seconds_count", summed=True) == 0, "an empty delta is no token"
    desk.now += 150.0
    desk.answer_body(WORD[:20])
    desk.answer_body(WORD[20:])
    assert desk.value("llm_d_epp_request_ttft_seconds_sum", streaming="true") == 0.25
    desk.now += 50.0
    desk.answer_body(WORD + USAGE)
    desk.answer_body(DONE, end=True)
    desk.close()
    assert desk.value("llm_d_epp_request_ttft_seconds_count", summed=True) == 1
    assert desk.value("llm_d_epp_request_output_tokens_sum", summed=True) == 7
    assert desk.learned() == {"lengths": 1, "token_scale": 1}
    desk.settled()


def test_response_headers_are_not_the_first_token() -> None:
    desk = placed(observe=True)
    desk.answer(content_type="text/event-stream")
    booking = desk.pool.ledger.at(desk.pool.table.wanted()[0])[0]
    assert booking.phase.name == "PREFILL"


@pytest.mark.parametrize("response_mode", [BUFFERED, PARTIAL])
def test_a_held_response_tells_nothing_of_times(response_mode: BodyMode) -> None:
    """It comes when all of it is there: its first token would look as late as its last."""
    desk = placed(BUFFERED, response_mode, observe=True)
    desk.answer(content_type="text/event-stream")
    desk.now += 5_000.0
    desk.answer_body(ROLE + WORD + USAGE + DONE, end=True)
    desk.close()
    assert desk.value("llm_d_epp_request_ttft_seconds_count", summed=True) == 0
    assert desk.learned() == {"lengths": 1, "token_scale": 1}


@pytest.mark.parametrize("usage", [b"", b'data: {"usage":{"prompt_tokens":0,"completion_tokens":0}}\n\n'])
def test_without_usage_events_count_as_tokens(usage: bytes) -> None:
    desk = placed(observe=True)
    desk.answer(content_type="text/event-stream")
    for _ in range(4):
        desk.answer_body(WORD + usage)
    desk.answer_body(DONE, end=True)
    desk.close()
    assert desk.value("llm_d_epp_request_output_tokens_sum", summed=True) == 4
    assert desk.learned() == {"lengths": 1}


def test_an_answer_cut_off_proves_no_length() -> None:
    """The client went away in mid-stream: the tokens so far are not how long the answer would have been."""
    desk = placed(observe=True)
    desk.answer(content_type="text/event-stream")
    desk.answer_body(ROLE + WORD)
    desk.close()
    desk.settled()
    assert desk.learned() == {}
    assert desk.outcomes() == {"served": 1}


def test_trailers_end_a_watched_response() -> None:
    desk = placed(observe=True)
    desk.answer(content_type="text/event-stream")
    desk.answer_body(WORD + USAGE + DONE)
    desk.answer_trailers()
    desk.close()
    assert desk.learned() == {"lengths": 1, "token_scale": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b'{"usage":"none"}',
        b'{"usage":{"completion_tokens":-5,"prompt_tokens":"7"}}',
        b'{"usage":{"completion_tokens":1.5}}',
        b'{"usage":[1,2]}',
        b'{"usage":null}',
        b"{",
        b"\xff\xfe",
        b"[" * 5_000,
    ],
)
def test_usage_of_the_wrong_form_is_no_usage(answer: bytes) -> None:
    desk = placed(observe=True)
    desk.answer()
    desk.answer_body(answer, end=True)
    desk.close()
    desk.settled()
    assert desk.learned() == {}


# ── receipts ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_receipt_goes_out_only_where_allowed_and_asked_for(allowed: bool, wanted: bool) -> None:
    desk = Desk(BUFFERED, settings=ExchangeSettings(receipt_header=allowed))
    desk.headers(**{"x-poolpilot-receipt": "1"} if wanted else {})
    desk.body(chat("a secret prompt"))
    [reply] = desk.answer()
    assert isinstance(reply, HeadersReply)
    fields = dict(reply.mutation.set_headers)
    if not (allowed and wanted):
        assert fields == {}
        return
    receipt = msgspec.json.decode(fields["x-poolpilot-receipt"])
    assert receipt["chosen"] == FIRST
    assert [one["endpoint"] for one in receipt["candidates"]] == list(ADDRESSES)
    assert "secret" not in fields["x-poolpilot-receipt"]


def test_outcome_of_the_last_answer_counts() -> None:
    desk = placed(observe=True)
    desk.answer("200")
    desk.answer("503", attributes={"response.code_details": "local_rate_limited"})
    desk.answer_body(ANSWER, end=True)
    desk.close()
    assert desk.outcomes() == {Outcome.LOCAL_REPLY.value: 1}
    assert desk.learned() == {}


def test_a_load_report_of_a_pod_is_handed_on() -> None:
    desk = placed()
    desk.answer(endpoint_load_metrics="TEXT named_metrics.kv_cache_usage_perc=0.5")
    assert desk.load_reports == [(FIRST, "TEXT named_metrics.kv_cache_usage_perc=0.5")]


def test_a_load_report_in_a_local_reply_is_nobodys() -> None:
    desk = placed()
    attributes = {"response.code_details": "local_rate_limited"}
    desk.answer("429", attributes=attributes, endpoint_load_metrics="TEXT named_metrics.kv_cache_usage_perc=0.5")
    assert desk.load_reports == []
