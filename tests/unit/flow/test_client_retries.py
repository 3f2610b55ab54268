"""What a client sends again is known for it; what only looks alike is not, and memory is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange_desk import PARTIAL, Desk, chat
from poolpilot_picker.flow.client_retries import ClientRetries, Sign
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.requests.request import InferenceRequest, RequestKind


def sent(**fields: object) -> InferenceRequest:
    return InferenceRequest(request_id="r", body_bytes=100, **fields)  # type: ignore[arg-type]


def test_the_same_request_id_and_body_after_a_bad_end_is_a_retry():
    known = ClientRetries(window_ms=1_000.0)
    first = sent(client_id="a")
    assert known.came(first, 0.0) is None
    known.failed(first, 100.0)
    assert known.came(sent(client_id="a"), 1_000.0) is Sign.REQUEST_ID
    assert known.came(sent(client_id="a"), 1_001.0) is None, "once for each attempt that failed"


@pytest.mark.parametrize(
    "other",
    [
        {"client_id": "a", "tenant": "t"},
        {"client_id": "b"},
        {"client_id": "a", "model": "n"},
        {"client_id": "a", "prompt_tokens": 7},
        {},
    ],
)
def test_another_tenant_id_model_or_prompt_is_another_request(other: dict[str, object]):
    known = ClientRetries()
    known.failed(sent(client_id="a"), 0.0)
    assert known.came(sent(**other), 1.0) is None


def test_after_the_window_it_is_a_new_request():
    known = ClientRetries(window_ms=1_000.0)
    known.failed(sent(client_id="a"), 0.0)
    assert known.came(sent(client_id="a"), 1_001.0) is None


def test_an_idempotency_key_is_enough_and_a_count_more_than_that():
    known = ClientRetries()
    known.failed(sent(idempotency_key="k", client_id="a"), 0.0)
    assert known.came(sent(idempotency_key="k", client_id="b", prompt_tokens=3), 1.0) is Sign.KEY
    assert known.came(sent(client_retries=1), 1.0) is Sign.COUNT
    assert known.came(sent(client_retries=2, client_id="new"), 1.0) is Sign.COUNT


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.floats(0, 400)), max_size=80))
def test_memory_is_bounded_and_a_retry_always_had_an_attempt_that_failed(steps):
    known, now, failed = ClientRetries(most=4, window_ms=1_000.0), 0.0, {}
    for number, fails, passed in steps:
        now += passed
        request = sent(client_id=str(number))
        if known.came(request, now) is not None:
            assert now - failed.pop(number) <= 1_000.0
        if fails:
            known.failed(request, now)
            failed[number] = now
        assert len(known) <= 4


def test_nothing_is_remembered_of_what_ends_well():
    desk = Desk(PARTIAL)
    flow = desk.pool.flow = FlowControl(desk.pool, FlowSettings())
    for status, known in (("200", 0), ("429", 1), ("200", 0), ("200", 0)):
        desk.renew().outlet = _Outlet()
        desk.headers()
        desk.body(chat())
        desk.answer(status)
        desk.close()
        assert len(flow.client_retries) == known


def test_nothing_is_remembered_of_what_is_no_inference_call():
    flow = FlowControl(Desk(PARTIAL).pool, FlowSettings())
    for kind, known in ((RequestKind.OTHER, 0), (RequestKind.CHAT, 1)):
        flow.unserved(sent(client_id="a", kind=kind), 0.0)
        assert len(flow.client_retries) == known


def test_the_exchange_tells_who_came_and_went():
    desk = Desk(PARTIAL)
    flow = desk.pool.flow = FlowControl(desk.pool, FlowSettings())
    left = []
    for _ in range(3):
        desk.renew().outlet = _Outlet()
        desk.headers(x_stainless_retry_count="0")
        desk.body(chat())
        desk.answer("503")
        desk.close()
        left.append(flow.budget.left)
    assert left == [10.0, pytest.approx(9.2), pytest.approx(8.4)]
    desk.renew().outlet = _Outlet()
    desk.headers(x_stainless_retry_count="1", x_request_id="other")
    desk.body(chat())
    desk.close()
    assert flow.budget.left == pytest.approx(7.6)


def test_a_request_that_may_not_be_retried_tells_envoy_so():
    desk = Desk(PARTIAL)
    flow = desk.pool.flow = FlowControl(desk.pool, FlowSettings())
    flow.retried(100)
    desk.renew().outlet = _Outlet()
    desk.headers()
    [reply] = desk.body(chat())
    assert ("x-envoy-max-retries", "0") in reply.mutation.set_headers
    assert "," not in reply.mutation.destination
    desk.close()


class _Outlet:
    def say(self, replies: object) -> None:
        raise AssertionError("nothing waits")
