"""How long requests wait in the queue of a pool, how their wait ends, and what is shown of it."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from exchange_desk import spec_of
from flow_stage import ADDRESSES, Stage, refusal
from poolpilot_picker.errors import NoEndpoints, TooManyRequests
from poolpilot_picker.flow.holding import QueueOutcome, Ticket
from poolpilot_picker.flow.queue import QueueSettings


def test_who_has_waited_enough_is_answered_429_with_a_time_to_come_again():
    stage = Stage(queue=QueueSettings(ttl_ms=2_000.0))
    stage.go(), stage.go()
    waits = stage.go()
    stage.advance()
    assert stage.flow.next_ms == 3_000.0
    stage.advance(2_000.0)
    refused = waits.refused
    assert isinstance(refused, TooManyRequests)
    assert refused.dropped_reason == "rejected-ttl-expired"
    assert refused.message == "request timed out in queue: it waited 2.0 s for no endpoint has room: requests"
    assert refused.retry_after_s is not None and 1.0 <= refused.retry_after_s <= 60.0
    outcome = {"outcome": "EvictedTTL", "priority": "0", "inference_pool": "pool"}
    assert stage.value("llm_d_epp_flow_control_requests_total", **outcome) == 1.0


def test_an_empty_pool_holds_requests_until_endpoints_come():
    stage = Stage((), queue=QueueSettings(ttl_ms=2_000.0, no_endpoint_ttl_ms=9_000.0))
    waits, lost = stage.go(), stage.go()
    stage.advance(8_000.0)
    assert waits.refused is None
    stage.pool.apply_endpoints([spec_of(ADDRESSES[0])])
    stage.advance()
    assert waits.placement is not None
    stage.finish(waits)
    stage.pool.apply_endpoints([])
    stage.advance()
    stage.advance(8_999.0)
    assert lost.refused is None
    stage.advance(1.0)
    assert isinstance(lost.refused, NoEndpoints)


def test_an_empty_pool_answers_503_at_the_end_of_patience():
    stage = Stage((), queue=QueueSettings(ttl_ms=2_000.0, no_endpoint_ttl_ms=5_000.0))
    waits = stage.go()
    stage.advance(5_000.0)
    assert isinstance(waits.refused, NoEndpoints)
    assert waits.refused.dropped_reason == "rejected-no-endpoints"
    assert waits.refused.message.startswith("request timed out in queue and no endpoints are available")


def test_the_data_plane_waits_longer_than_the_queue():
    stage = Stage(queue=QueueSettings(ttl_ms=60_000.0, most_ttl_ms=8_000.0), gateway_ms=10_000.0)
    stage.go(), stage.go()
    _, ticket = stage.submit()
    assert isinstance(ticket, Ticket)
    assert ticket.expires_ms - ticket.arrived_ms == 8_000.0
    assert stage.flow.patience_ms(ticket) == 10_000.0
    short = stage.submit(queue_ttl_ms=500.0)[1]
    assert isinstance(short, Ticket) and short.expires_ms - short.arrived_ms == 500.0


def test_who_goes_away_frees_its_place_at_once():
    stage = Stage(queue=QueueSettings(max_requests=1))
    stage.go(), stage.go()
    _, ticket = stage.submit()
    assert refusal(stage).message == "the queue is full"
    assert isinstance(ticket, Ticket)
    stage.flow.withdraw(ticket, QueueOutcome.EVICTED_CONTEXT_CANCELLED, stage.now)
    assert stage.go().refused is None
    waiting = {"fairness_id": "default-flow", "priority": "0", "inference_pool": "pool"}
    waiting |= {"model_name": "m", "target_model_name": "m"}
    assert stage.value("llm_d_epp_flow_control_queue_size", **waiting) == 1.0
    assert stage.value("llm_d_epp_flow_control_queue_bytes", **waiting) == 400.0


def test_a_full_queue_of_an_empty_pool_answers_503():
    stage = Stage((), queue=QueueSettings(max_requests=1))
    stage.go()
    refused = refusal(stage)
    assert isinstance(refused, NoEndpoints) and refused.retry_after_s


def test_a_request_of_higher_value_takes_a_place():
    stage = Stage(queue=QueueSettings(max_requests=1))
    stage.go(), stage.go()
    low = stage.go(priority=-1)
    high = stage.go(priority=3)
    assert low.refused is not None and low.refused.dropped_reason == "evicted-priority"
    assert low.refused.status == 429 and high.refused is None


def test_the_queue_is_seen_also_while_the_pool_is_empty():
    stage = Stage(())
    stage.go()
    stage.now += 3_000.0
    page = generate_latest(stage.metrics.registry).decode()
    assert 'poolpilot_flow_control_oldest_wait_seconds{inference_pool="pool"} 3.0' in page
    assert 'llm_d_epp_flow_control_pool_saturation{inference_pool="pool",stage="effective"} 1.0' in page
    assert 'llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="pool",priority="0"} 0.0002' in page


def test_the_predicted_wait_is_the_queue_over_the_pace():
    stage = Stage(ADDRESSES[:1])
    clients = [stage.go(max_tokens=1) for _ in range(21)]
    for client in clients[:11]:
        stage.finish(client, after=200.0)
        stage.advance()
    assert len(stage.flow.queue) == 9
    assert stage.flow.predicted_wait_ms(stage.now) == pytest.approx(9 * 200.0, rel=0.25)
    assert stage.flow.retry_after_s(stage.now) == pytest.approx(1.8, rel=0.25)


def test_the_decision_of_who_has_waited_is_timed_like_any_other():
    stage = Stage(ADDRESSES[:1])
    first, held = stage.go(), stage.go()
    name = "llm_d_epp_scheduler_e2e_duration_seconds_count"
    assert stage.value(name) == 0.0, "these were placed without an exchange, which times them"
    stage.finish(first)
    stage.advance()
    assert held.placement is not None
    assert stage.value(name) == 1.0
