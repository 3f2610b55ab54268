"""What the picker answers itself: form, status and text in each mode, and what the log may say of it."""

from __future__ import annotations

import logging

import msgspec
import pytest

from core_pools import Failing
from exchange_desk import (
    ADDRESSES,
    BUFFERED,
    DUPLEX,
    GRPC,
    NONE,
    PARTIAL,
    STREAMED,
    Desk,
    chat,
    message_of,
    picked,
    plain,
    refused,
)
from poolpilot_picker.errors import (
    NoEndpoints,
    PreconditionFailed,
    RequestRefused,
    TooManyRequests,
)
from poolpilot_picker.extproc.replies import BodyMode, HeadersReply, ImmediateReply
from poolpilot_picker.state.endpoints import EndpointSpec

MODES = [BUFFERED, PARTIAL, DUPLEX]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("body", "start", "param"),
    [
        (b"no healthy upstream", "inference error: BadRequest - error unmarshaling request bodyMap: ", None),
        (b'{"messages":[]}', "inference error: BadRequest - ", "messages"),
        (
            b'{"messages":[{"role":"user","content":"x"}]}',
            "inference error: BadRequest - model not found in request body",
            "model",
        ),
        (b'{"model":5,"messages":[]}', "inference error: BadRequest - model not found in request body", "model"),
        (b"[1]", "inference error: BadRequest - error unmarshaling request bodyMap: ", None),
        (b"\xff", "inference error: BadRequest - error unmarshaling request bodyMap: ", None),
        (b"[" * 100_000, "inference error: BadRequest - error unmarshaling request bodyMap: ", None),
    ],
)
def test_bad_bodies(mode: BodyMode, body: bytes, start: str, param: str | None) -> None:
    desk = Desk(mode)
    desk.headers()
    reply = refused(desk.body(body))
    assert (reply.status, reply.grpc_status) == (400, None)
    error = msgspec.json.decode(reply.body)["error"]
    assert error["message"].startswith(start)
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)
    assert dict(reply.set_headers)["content-type"] == "application/json"
    assert desk.body(b"more") == [], "nothing is said after it"
    assert desk.trailers() == []
    assert plain(desk.answer("200", attributes={}))
    desk.close()
    desk.settled()
    assert desk.policy.calls == 0
    assert desk.by_label("llm_d_epp_request_error_total", "error_code") == {"BadRequest": 1}


REFUSALS = [
    (NoEndpoints("none"), 503, "ServiceUnavailable - none", "rejected-no-endpoints"),
    (TooManyRequests("busy"), 429, "ResourceExhausted - busy", "rejected-saturated"),
    (PreconditionFailed("no decode worker has the requested KV cache"), 412, "PreconditionFailed - no decode", None),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("error", "status", "text", "reason"), REFUSALS)
def test_refusals_of_the_policy(
    mode: BodyMode, error: RequestRefused, status: int, text: str, reason: str | None
) -> None:
    desk = Desk(mode)
    desk.policy.error = error
    desk.headers()
    reply = refused(desk.body(chat()))
    assert reply.status == status
    assert message_of(reply).startswith(f"inference error: {text}")
    assert dict(reply.set_headers).get("x-llm-d-request-dropped-reason") == reason
    assert reply.details == f"poolpilot_{reason or error.code}"
    desk.close()
    desk.settled()
    assert desk.by_label("llm_d_epp_request_error_total", "error_code") == {error.code: 1}
    assert desk.by_label("llm_d_epp_scheduler_attempts_total", "status") == {"failure": 1}
    assert desk.by_label("poolpilot_requests_refused_total", "reason") == {reason or "": 1}


@pytest.mark.parametrize("mode", [NONE, STREAMED, *MODES])
def test_an_empty_pool_answers_503_to_header_only_requests_too(mode: BodyMode) -> None:
    desk = Desk(mode, addresses=[])
    reply = refused(desk.headers("/v1/models", method="GET", end=True))
    assert reply.status == 503
    assert message_of(reply) == (
        "inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request"
    )
    assert dict(reply.set_headers)["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


@pytest.mark.parametrize("mode", [*MODES, GRPC])
def test_grpc_requests_get_a_grpc_status(mode: BodyMode) -> None:
    desk = Desk(mode, addresses=[])
    reply = refused(desk.headers("/vllm.grpc.engine.VllmEngine/Generate", content_type="application/grpc"))
    assert (reply.status, reply.grpc_status) == (503, 14)


# ── giving up ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
def test_giving_up_before_the_pick_refuses(mode: BodyMode) -> None:
    """A stream that ended OK here would let its request through unpicked, or empty."""
    desk = Desk(mode)
    desk.headers()
    reply = refused(desk.exchange.give_up(desk.now) or [])
    assert reply.status == 503
    assert message_of(reply) == "inference error: ServiceUnavailable - the picker is shutting down"
    assert dict(reply.set_headers)["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
    assert desk.exchange.give_up(desk.now) == [], "said once"
    assert desk.body(chat()) == []


@pytest.mark.parametrize("mode", [None, *MODES])
def test_giving_up_before_the_first_message_must_end_in_an_error(mode: BodyMode | None) -> None:
    """The headers may be on their way."""
    assert Desk(mode).exchange.give_up(0.0) is None


@pytest.mark.parametrize("mode", [BUFFERED, PARTIAL])
def test_giving_up_after_the_pick_is_harmless_in_held_modes(mode: BodyMode) -> None:
    desk = Desk(mode, NONE)
    desk.headers()
    desk.body(chat())
    assert desk.exchange.give_up(desk.now) == []
    desk.answer()
    assert desk.exchange.give_up(desk.now) == []


def test_giving_up_a_duplex_response_cuts_it_off() -> None:
    desk = Desk(BUFFERED, DUPLEX)
    desk.headers()
    desk.body(chat())
    assert desk.exchange.give_up(desk.now) is None
    desk.answer()
    desk.answer_body(b"x")
    assert desk.exchange.give_up(desk.now) is None
    desk.answer_body(b"y", end=True)
    assert desk.exchange.give_up(desk.now) == []


def test_giving_up_a_duplex_request_under_way_cuts_it_off() -> None:
    desk = Desk(DUPLEX, NONE)
    desk.headers("/service/Method", content_type="application/grpc")
    desk.body(b"one", end=False)
    assert desk.exchange.give_up(desk.now) is None
    desk.body(b"two", end=True)
    assert desk.exchange.give_up(desk.now) == []


def test_giving_up_after_a_local_reply() -> None:
    desk = Desk(BUFFERED, NONE)
    desk.headers()
    desk.answer("413", attributes={"response.code_details": "request_payload_too_large"})
    assert desk.exchange.give_up(desk.now) == []


# ── faults of ours ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_in_choosing_places_at_random(mode: BodyMode, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(mode)
    desk.policy.error = ZeroDivisionError("prediction")
    used = set()
    for _ in range(40):
        desk.renew()
        desk.headers()
        picked(desk.body(chat())[0])
        used.add(desk.destination)
        desk.answer()
        desk.close()
        desk.settled()
    assert used == set(ADDRESSES)
    assert desk.outcomes() == {"served": 40}
    assert desk.events() == {"placing-failed": 40}
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(records) == 1, "said once a minute"
    desk.now += 60_000.0
    desk.renew()
    desk.headers()
    desk.body(chat())
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [getattr(record, "times", None) for record in records] == [1, 40]


def test_a_fault_in_choosing_respects_the_subset() -> None:
    desk = Desk(BUFFERED)
    desk.policy.error = ZeroDivisionError("prediction")
    subset = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": [ADDRESSES[1]]}}
    for _ in range(10):
        desk.renew()
        desk.headers()
        [reply] = desk.body(chat(), metadata=subset)
        assert picked(reply) == ADDRESSES[1]
        desk.close()


def test_a_fault_after_booking_does_not_book_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(BUFFERED)
    failing = Failing(desk.pool.prefixes, "insert", IndexError("prefix index"))
    monkeypatch.setattr(desk.pool, "prefixes", failing)
    desk.headers()
    desk.body(chat())
    assert sum(desk.in_flight().values()) == 1
    desk.close()
    desk.settled()


def test_a_fault_in_reading_places_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(DUPLEX)

    def broken(*_: object, **__: object) -> None:
        raise AssertionError("parser")

    monkeypatch.setattr("poolpilot_picker.extproc.account.parse", broken)
    desk.headers(x_gateway_model_name_rewrite="target")
    head, *_ = desk.body(chat())
    assert isinstance(head, HeadersReply)
    assert desk.destination
    assert desk.events() == {"parsing-failed": 1}
    desk.close()
    desk.settled()


def test_a_fault_in_everything_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(BUFFERED)

    def broken(*_: object) -> None:
        raise IndexError("table")

    monkeypatch.setattr("poolpilot_picker.flow.pool.candidates", broken)
    desk.headers()
    reply = refused(desk.body(chat()))
    assert reply.status == 500
    assert message_of(reply).startswith("inference error: Internal - ")
    desk.close()
    desk.settled()


# ── the log ──────────────────────────────────────────────────────────────────

MARKER = "CONFIDENTIAL-4711"


@pytest.mark.parametrize(
    "body",
    [
        chat(MARKER),
        b'{"model":"m","messages":"' + MARKER.encode() + b'"}',
        b'{"model":"m","messages":[{"role":"user","content":{"text":"' + MARKER.encode() + b'"}}]}',
        b'{"model":["' + MARKER.encode() + b'"],"messages":[{"role":"user","content":"x"}]}',
        b'{"' + MARKER.encode(),
        MARKER.encode(),
    ],
)
@pytest.mark.parametrize("fault", [False, True])
def test_no_prompt_in_the_log(body: bytes, fault: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    desk = Desk(BUFFERED)
    if fault:
        desk.policy.error = ZeroDivisionError("prediction")
    desk.headers()
    desk.body(body)
    desk.answer()
    desk.close()
    for record in caplog.records:
        assert MARKER not in repr(vars(record))


def test_refusals_are_logged_once_a_minute_for_operators(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    desk = Desk(BUFFERED, addresses=[])
    for _ in range(5):
        desk.renew()
        desk.headers()
        desk.body(chat())
        desk.close()
    levels = [record.levelname for record in caplog.records if record.message == "refused"]
    assert levels == ["INFO", "DEBUG", "DEBUG", "DEBUG", "DEBUG"]
    desk.pool.apply_endpoints([EndpointSpec(host="10.0.0.1", port=8000)])
    desk.renew()
    desk.headers()
    assert not isinstance(desk.body(chat())[0], ImmediateReply)
