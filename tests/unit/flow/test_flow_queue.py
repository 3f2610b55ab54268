"""The shared queue: order, ageing, fairness between tenants, limits and who must go for whom."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from poolpilot_picker.flow.holding import Ticket
from poolpilot_picker.flow.queue import OVERDUE_TURN, BandSettings, FlowQueue, QueueFull, QueueSettings
from poolpilot_picker.requests.request import InferenceRequest


def ticket(
    tenant: str = "t", *, at: float = 0.0, priority: int = 0, size: int = 1, cost: float = 1.0, **more: Any
) -> Ticket:
    fields = {"ttl_ms": 60_000.0, "uncached_tokens": cost} | more
    slo = fields.pop("slo", None)
    return Ticket(
        request=InferenceRequest(request_id=f"{tenant}@{at:g}", slo_ttft_ms=slo),
        waiter=SimpleNamespace(),
        arrived_ms=at,
        tenant=tenant,
        priority=priority,
        size_bytes=size,
        cost=cost,
        **fields,
    )


def drained(queue: FlowQueue, now: float = 0.0) -> list[Ticket]:
    """All tickets in the order in which they would go, each at its cost."""
    gone = []
    while len(queue):
        first = next(queue.heads(now))
        queue.take(first, first.cost, now)
        gone.append(first)
    assert queue.bytes == 0
    return gone


def names(tickets: list[Ticket]) -> str:
    return " ".join(one.tenant for one in tickets)


def queue_of(*tickets: Ticket, **settings: Any) -> FlowQueue:
    queue = FlowQueue(QueueSettings(**settings))
    for one in tickets:
        assert queue.offer(one, one.arrived_ms) == []
    return queue


def test_one_tenant_is_served_in_the_order_of_arrival():
    tickets = [ticket(at=at) for at in range(5)]
    assert drained(queue_of(*tickets)) == tickets


def test_a_higher_priority_goes_first():
    low, high = ticket("low", priority=-1), ticket("high", at=1.0, priority=5)
    assert drained(queue_of(low, high), 2.0) == [high, low]


def test_tenants_share_by_what_they_cost_not_by_requests():
    bully = [ticket("bully", at=at, cost=10.0) for at in range(4)]
    small = [ticket("small", at=10.0 + at, cost=1.0) for at in range(8)]
    assert (
        names(drained(queue_of(*bully, *small), 20.0))
        == "bully small small small small small small small small bully bully bully"
    )


def test_weights_divide_the_charge():
    tickets = [ticket(name, at=at) for at in range(9) for name in ("one", "two")]
    order = drained(queue_of(*tickets, weights={"two": 2.0}), 10.0)[:9]
    assert names(order).count("two") == 6


def test_who_was_away_saves_nothing_up():
    queue = queue_of(*(ticket("busy", at=at) for at in range(20)))
    for _ in range(10):
        first = next(queue.heads(30.0))
        queue.take(first, 1.0, 30.0)
    for at in range(10):
        queue.offer(ticket("back", at=31.0 + at), 31.0 + at)
    assert names(drained(queue, 50.0)[:8]).count("back") in (4, 5)


def test_a_history_alone_on_the_machine_is_no_debt():
    queue = FlowQueue()
    for _ in range(100):
        queue.band(0).passed("alone", 1_000.0, 0.0)
    for at in range(6):
        queue.offer(ticket("new", at=at, cost=1_000.0), at)
        queue.offer(ticket("alone", at=at, cost=1_000.0), at)
    assert names(drained(queue, 10.0)[:6]).count("alone") >= 2


def test_a_correction_moves_the_turn():
    queue = queue_of(*(ticket(name, at=at) for at in range(4) for name in ("a", "b")))
    first = next(queue.heads(5.0))
    queue.take(first, 1.0, 5.0)
    first.flow.band.correct(first.flow, 100.0, 5.0)
    assert names(drained(queue, 5.0)[:4]) == "b b b b"
    first.flow.band.correct(first.flow, -1e9, 5.0)
    assert first.flow.counter == 0.0


def test_global_strict_isolates_nobody():
    settings = {"default_band": BandSettings(fairness="global-strict")}
    tickets = [ticket("bully", at=at) for at in range(5)] + [ticket("small", at=9.0)]
    assert drained(queue_of(*tickets, **settings), 10.0) == tickets


def test_round_robin_gives_one_each():
    settings = {"default_band": BandSettings(fairness="round-robin")}
    tickets = [ticket("a", at=at, cost=50.0) for at in range(3)] + [ticket("b", at=5.0 + at) for at in range(3)]
    assert names(drained(queue_of(*tickets, **settings), 10.0)) == "a b a b a b"


def test_program_aware_prefers_who_had_least_lately_and_forgets():
    settings = {"default_band": BandSettings(fairness="program-aware")}
    queue = queue_of(**settings)
    queue.band(0).passed("heavy", 1_000.0, 0.0)
    queue.band(0).passed("light", 10.0, 0.0)
    queue.offer(ticket("heavy", at=0.0), 0.0)
    queue.offer(ticket("light", at=0.0), 0.0)
    assert next(queue.heads(1.0)).tenant == "light"
    heavy = queue.band(0).flow("heavy")
    queue.band(0).served(heavy, 0.0, 60_000.0)
    assert heavy.attained == pytest.approx(500.0)


def test_edf_and_slo_deadline_order_within_a_tenant():
    slow, fast = ticket(at=0.0, ttl_ms=9_000.0, slo=900.0), ticket(at=1.0, ttl_ms=5_000.0, slo=100.0)
    never = ticket(at=0.5, ttl_ms=math.inf)
    for ordering in ("edf", "slo-deadline"):
        settings = {"default_band": BandSettings(ordering=ordering)}
        assert drained(queue_of(slow, never, fast, **settings), 2.0) == [fast, slow, never], ordering


def test_withdrawn_heads_are_passed_over():
    for ordering in ("fcfs", "edf"):
        first, second = ticket(at=0.0), ticket(at=1.0)
        queue = queue_of(first, second, default_band=BandSettings(ordering=ordering))
        assert queue.withdraw(first, 2.0)
        assert not queue.withdraw(first, 2.0)
        assert drained(queue, 2.0) == [second]


# ---- time


def test_the_overdue_get_a_share_of_the_turns_and_the_longest_overdue_first():
    settings = {"default_band": BandSettings(ageing_ms=1_000.0), "bands": {9: BandSettings(ageing_ms=1e9)}}
    old = [ticket("old", at=at) for at in range(3)]
    young = [ticket("young", at=2_000.0, priority=9) for _ in range(4 * OVERDUE_TURN)]
    order = drained(queue_of(*old, *young, **settings), 5_000.0)
    places = [order.index(one) for one in old]
    assert places == [OVERDUE_TURN * (index + 1) - 1 for index in range(3)]


def test_what_may_be_shed_does_not_age():
    settings = {"default_band": BandSettings(ageing_ms=1_000.0)}
    shed = ticket("shed", at=0.0, priority=-1)
    young = [ticket("young", at=2_000.0) for _ in range(2 * OVERDUE_TURN)]
    assert drained(queue_of(shed, *young, **settings), 5_000.0)[-1] is shed


def test_nobody_waits_beyond_the_ttl():
    short, long = ticket(at=0.0, ttl_ms=1_000.0), ticket(at=0.0, ttl_ms=9_000.0)
    queue = queue_of(long, short)
    assert queue.next_expiry() == 1_000.0
    assert queue.expire(999.0) == []
    assert queue.expire(1_000.0) == [short]
    assert queue.next_expiry() == 9_000.0


def test_the_shortest_of_band_request_and_gateway_counts():
    settings = QueueSettings(
        ttl_ms=60_000.0, most_ttl_ms=8_000.0, bands={-1: BandSettings(ttl_ms=2_000.0), 1: BandSettings(ttl_ms=math.inf)}
    )
    queue = FlowQueue(settings)
    assert [queue.ttl_ms(*each) for each in ((0, None), (-1, None), (-1, 500.0), (0, 90_000.0), (1, None))] == [
        8_000.0,
        2_000.0,
        500.0,
        8_000.0,
        8_000.0,
    ]


def test_patience_begins_anew_when_endpoints_come_or_go():
    queue = queue_of(ticket(at=0.0, ttl_ms=1_000.0), no_endpoint_ttl_ms=5_000.0)
    queue.endpoints(False, 800.0)
    assert queue.next_expiry() == 5_800.0
    queue.endpoints(False, 900.0)
    queue.endpoints(True, 4_000.0)
    assert queue.next_expiry() == 5_000.0
    assert len(queue.expire(5_000.0)) == 1


def test_the_gateway_waits_no_longer_for_endpoints_either():
    queue = queue_of(ticket(at=0.0, ttl_ms=1_000.0), no_endpoint_ttl_ms=5_000.0, most_ttl_ms=1_500.0)
    queue.endpoints(False, 800.0)
    assert queue.next_expiry() == 1_500.0


# ---- full


def test_a_full_queue_takes_no_more_of_the_same():
    queue = queue_of(ticket(at=0.0), max_requests=1)
    with pytest.raises(QueueFull):
        queue.offer(ticket(at=1.0), 1.0)
    assert len(queue) == 1


def test_a_higher_priority_takes_the_place_of_the_newest_lowest():
    low = [ticket("low", at=at, priority=-1) for at in range(2)]
    queue = queue_of(*low, ticket("mid", at=2.0), max_requests=3)
    assert queue.offer(ticket("high", at=3.0, priority=1), 3.0) == [low[1]]
    assert queue.offer(ticket("high", at=4.0, priority=1), 4.0) == [low[0]]


def test_a_tenant_with_less_takes_the_place_of_one_with_more():
    bully = [ticket("bully", at=at) for at in range(4)]
    queue = queue_of(*bully, default_band=BandSettings(max_requests=4))
    assert queue.offer(ticket("small", at=5.0), 5.0) == [bully[3]]
    assert queue.offer(ticket("small", at=6.0), 6.0) == [bully[2]]
    with pytest.raises(QueueFull):
        queue.offer(ticket("small", at=7.0), 7.0)


def test_bytes_count_as_places_do_and_several_may_have_to_go():
    low = [ticket("low", at=at, priority=-1, size=40) for at in range(3)]
    queue = queue_of(*low, max_bytes=120)
    assert queue.offer(ticket("high", at=4.0, size=70), 4.0) == [low[2], low[1]]
    assert queue.bytes == 110
    with pytest.raises(QueueFull):
        queue.offer(ticket("high", at=5.0, size=90), 5.0)
    assert queue.bytes == 110 and len(queue) == 2


def test_a_flood_that_is_overdue_itself_does_not_pass_over_the_longest_overdue():
    settings = {"default_band": BandSettings(ageing_ms=1_000.0)}
    old = ticket("old", at=0.0)
    flood = [ticket("flood", at=1.0, priority=9) for _ in range(2 * OVERDUE_TURN)]
    order = drained(queue_of(old, *flood, **settings), 5_000.0)
    assert order.index(old) == OVERDUE_TURN - 1


def test_a_withdrawn_head_gives_its_turn_to_the_next_of_all():
    first, later, other = ticket("a", at=0.0), ticket("a", at=5.0), ticket("b", at=1.0)
    queue = queue_of(first, other, later, default_band=BandSettings(fairness="global-strict"))
    queue.withdraw(first, 6.0)
    assert drained(queue, 6.0) == [other, later]
