"""The shared queue under any sequence of events: nothing lost, nothing negative, nobody passed over for ever."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poolpilot_picker.flow.holding import Ticket
from poolpilot_picker.flow.queue import OVERDUE_TURN, BandSettings, FlowQueue, QueueFull, QueueSettings
from poolpilot_picker.requests.request import InferenceRequest

TENANTS = ("a", "b", "c")
PRIORITIES = (-1, 0, 7)
BANDS = {
    -1: BandSettings(max_requests=6, ageing_ms=50.0, fairness="round-robin"),
    0: BandSettings(max_requests=8, max_bytes=60, ageing_ms=20.0, ordering="edf"),
    7: BandSettings(max_requests=5, ageing_ms=80.0),
}


class QueueMachine(RuleBasedStateMachine):
    """A queue and what must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = FlowQueue(QueueSettings(max_requests=14, max_bytes=120, no_endpoint_ttl_ms=70.0, bands=BANDS))
        self.waiting: dict[Ticket, None] = {}
        self.offered = self.ended = 0
        self.present, self.since = True, float("-inf")
        self.passed_over: dict[Ticket, int] = {}
        self.charged: list[Ticket] = []

    @rule(
        tenant=st.sampled_from(TENANTS),
        priority=st.sampled_from(PRIORITIES),
        size=st.integers(0, 30),
        cost=st.floats(0.0, 100.0),
        ttl=st.sampled_from((5.0, 40.0, 300.0, float("inf"))),
    )
    def offer(self, tenant: str, priority: int, size: int, cost: float, ttl: float) -> None:
        one = Ticket(
            request=InferenceRequest(request_id=str(self.offered)),
            waiter=SimpleNamespace(),
            arrived_ms=self.now,
            tenant=tenant,
            priority=priority,
            size_bytes=size,
            cost=cost,
            uncached_tokens=cost,
            ttl_ms=ttl,
        )
        self.offered += 1
        try:
            victims = self.queue.offer(one, self.now)
        except QueueFull:
            self.ended += 1
            assert len(self.waiting) >= 5 or sum(each.size_bytes for each in self.waiting) + size > 60
            return
        self.waiting[one] = None
        for victim in victims:
            assert victim.priority <= priority and (victim.priority < priority or victim.tenant != tenant)
            del self.waiting[victim]
            self.ended += 1

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 2))
    def dispatch(self, index: int) -> None:
        """One of the first heads, as where the first ones have no room."""
        heads = self.queue.heads(self.now)
        chosen = None
        for place, one in enumerate(heads):
            chosen = one
            if place == index:
                break
        heads.close()
        assert chosen is not None, "somebody waits, and nobody is next"
        overdue = [one for one in self.waiting if one.overdue_ms <= self.now]
        longest = min(overdue, key=lambda one: (one.overdue_ms, one.sequence), default=None)
        turn = self.queue.overdue_turn(self.now)
        if turn and index == 0:
            assert chosen is longest
        self.queue.take(chosen, chosen.cost, self.now)
        if index == 0 and longest is not None and chosen is not longest:
            self.passed_over[longest] = self.passed_over.get(longest, 0) + 1
            assert self.passed_over[longest] < OVERDUE_TURN
        del self.waiting[chosen]
        self.charged.append(chosen)
        self.ended += 1

    @precondition(lambda self: self.charged)
    @rule(data=st.data(), difference=st.floats(-200.0, 200.0))
    def correct(self, data: st.DataObject, difference: float) -> None:
        one = data.draw(st.sampled_from(self.charged))
        one.flow.band.correct(one.flow, difference, self.now)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.waiting)))
        assert self.queue.withdraw(one, self.now)
        assert not self.queue.withdraw(one, self.now)
        del self.waiting[one]
        self.ended += 1

    @rule(by=st.sampled_from((0.0, 1.0, 15.0, 60.0)))
    def wait(self, by: float) -> None:
        self.now += by
        for one in self.queue.expire(self.now):
            del self.waiting[one]
            self.ended += 1
        for one in self.waiting:
            patience = one.ttl_ms if self.present else 70.0
            assert max(one.arrived_ms, self.since) + patience > self.now, "it waits beyond its time"

    @rule(present=st.booleans())
    def endpoints(self, present: bool) -> None:
        if present is not self.present:
            self.present, self.since = present, self.now
        self.queue.endpoints(present, self.now)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.queue) == len(self.waiting) == self.offered - self.ended
        assert set(self.queue) == set(self.waiting)
        assert self.queue.bytes == sum(one.size_bytes for one in self.waiting)
        for band in self.queue.bands:
            own = [one for one in self.waiting if one.priority == band.priority]
            assert (band.count, band.bytes) == (len(own), sum(one.size_bytes for one in own))
            assert band.waiting == len({one.tenant for one in own})
            longest = band.longest()
            lengths = [sum(one.tenant == tenant for one in own) for tenant in TENANTS]
            assert (len(longest.tickets) if longest else 0) == max(lengths)

    @invariant()
    def limits_hold(self) -> None:
        assert len(self.queue) <= 14
        assert self.queue.bytes <= 120
        for band in self.queue.bands:
            assert band.count <= BANDS[band.priority].max_requests
        assert all(flow.counter >= 0.0 for band in self.queue.bands for flow in band.flows())

    @invariant()
    def every_tenant_is_among_the_heads_of_its_band(self) -> None:
        for band in self.queue.bands:
            heads = [one.tenant for one in band.heads(self.now)]
            assert sorted(heads) == sorted({one.tenant for one in self.waiting if one.priority == band.priority})


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(
    costs=st.lists(st.tuples(st.floats(1.0, 50.0), st.floats(1.0, 50.0)), min_size=5, max_size=60),
    errors=st.lists(st.floats(-0.9, 3.0), min_size=60, max_size=120),
)
@settings(max_examples=60, deadline=None)
def test_the_service_of_two_backlogged_tenants_stays_within_the_bound(
    costs: list[tuple[float, float]], errors: list[float]
) -> None:
    """VTC: the gap is at most twice the dearest request, as soon as what it really cost is known."""
    queue = FlowQueue()
    for index, pair in enumerate(costs):
        for tenant, cost in zip("ab", pair, strict=True):
            queue.offer(
                Ticket(
                    request=InferenceRequest(request_id=f"{tenant}{index}"),
                    waiter=SimpleNamespace(),
                    arrived_ms=float(index),
                    tenant=tenant,
                    priority=0,
                    size_bytes=0,
                    cost=cost,
                    uncached_tokens=cost,
                    ttl_ms=1e9,
                ),
                0.0,
            )
    served = {"a": 0.0, "b": 0.0}
    dearest = 0.0
    band = queue.band(0)
    for error in errors:
        if band.waiting < 2:
            break
        first = next(queue.heads(0.0))
        true = first.cost * (1.0 + error)
        queue.take(first, first.cost, 0.0)
        band.correct(first.flow, true - first.cost, 0.0)
        served[first.tenant] += true
        dearest = max(dearest, true, first.cost)
        assert abs(served["a"] - served["b"]) <= 2.0 * dearest + 1e-6
