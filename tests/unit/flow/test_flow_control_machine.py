"""Flow control of a pool under any sequence of events: no request lost, no room left unused, nobody beyond its time."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exchange_desk import Chosen, spec_of
from poolpilot_picker.errors import NoEndpoints, RequestRefused, TooManyRequests
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.holding import QueueOutcome, Ticket
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Placement, Pool, PoolSettings
from poolpilot_picker.flow.queue import BandSettings, QueueSettings
from poolpilot_picker.flow.retries import RetrySettings
from poolpilot_picker.flow.room import OTHERS_MS, RoomSettings
from poolpilot_picker.flow.tenants import TenantLimits
from poolpilot_picker.learning.breaker import EjectionSettings
from poolpilot_picker.requests.request import InferenceRequest, RequestKind

ADDRESSES = tuple(f"10.0.0.{number}:8000" for number in range(1, 5))
EACH = 2
TTL_MS, EMPTY_TTL_MS = 400.0, 900.0
LIMITED = 3


class Client:
    """What became of one request: exactly one thing."""

    def __init__(self, tenant: str, since: float) -> None:
        self.tenant = tenant
        self.since = since
        self.ticket: Ticket | None = None
        self.placement: Placement | None = None
        self.refused: RequestRefused | None = None
        self.gone = False

    def dispatched(self, placement: Placement, now: float) -> None:
        assert self.waits
        self.placement = placement

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        assert self.waits
        self.refused = refused

    def unplaceable(self, now: float) -> None:
        raise AssertionError("choosing does not fail here")

    @property
    def waits(self) -> bool:
        return self.placement is None and self.refused is None and not self.gone


class FlowMachine(RuleBasedStateMachine):
    """A pool whose endpoints take EACH requests, and clients that come, wait and go."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        # Endpoints that fail would be left out: then room is left unused, rightly.
        settings = PoolSettings(receipt_share=0.0, ejection=EjectionSettings(most_share=0.0))
        self.pool = Pool("pool", Chosen(), random.Random(1), settings)
        self.pool.apply_endpoints([spec_of(address) for address in ADDRESSES[:2]])
        band = BandSettings(ageing_ms=100.0)
        self.flow = FlowControl(
            self.pool,
            FlowSettings(
                queue=QueueSettings(max_requests=12, ttl_ms=TTL_MS, no_endpoint_ttl_ms=EMPTY_TTL_MS, default_band=band),
                room=RoomSettings(max_requests=EACH, short_reserve=0.0, start_within_ms=1e12),
                tenants={"limited": TenantLimits(active_sequences=LIMITED)},
                retries=RetrySettings(share=0.2, burst=3.0),
            ),
        )
        self.pool.flow = self.flow
        self.kicked = False
        self.others_ms = -math.inf
        """When a request that is not sheddable was placed last."""
        self.changed = 0.0
        """When the pool got its first endpoint, or lost its last."""
        self.flow.kick = self.kick
        self.priorities: tuple[int, ...] = ()
        self.clients: list[Client] = []
        self.running: list[Client] = []

    @initialize(priorities=st.sampled_from(((-1, 0, 4), (-1, 0, 4), (-1,))))
    def begin(self, priorities: tuple[int, ...]) -> None:
        self.priorities = priorities

    def kick(self) -> None:
        self.kicked = True

    def settle(self) -> None:
        """What a dispatcher does: call when asked to, or when it is time."""
        while self.kicked or self.flow.next_ms <= self.now:
            self.kicked = False
            self.flow.advance(self.now)
        begun = [one for one in self.clients if one.placement is not None]
        if any(one.placement.request.priority >= 0 for one in begun if one.placement is not None):
            self.others_ms = self.now
        self.running += begun
        self.clients = [one for one in self.clients if one.waits]

    @rule(
        tenant=st.sampled_from(("a", "b", "limited")),
        priority=st.integers(0, 2),
        tokens=st.sampled_from((10, 500, 20_000)),
        sequences=st.sampled_from((1, 1, 2)),
        subset=st.sampled_from((None, None, None, ADDRESSES[:1])),
    )
    def arrive(self, **fields: Any) -> None:
        client = Client(fields["tenant"], self.now)
        request = InferenceRequest(
            request_id="r",
            kind=RequestKind.CHAT,
            model="m",
            target_model="m",
            tenant=fields["tenant"],
            priority=self.priorities[fields["priority"] % len(self.priorities)],
            prompt_tokens=fields["tokens"],
            body_bytes=fields["tokens"],
            sequences=fields["sequences"],
            subset=fields["subset"],
        )
        try:
            found = self.flow.submit(request, client, self.now)
        except TooManyRequests:
            assert len(self.flow.queue) >= 12
            return
        except NoEndpoints:
            assert fields["subset"] is not None or len(self.flow.queue) >= 12
            return
        if isinstance(found, Ticket):
            client.ticket = found
        else:
            client.placement = found
        self.clients.append(client)
        self.settle()

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(), outcome=st.sampled_from((Outcome.SERVED, Outcome.ABORTED, Outcome.FAILED)), by=st.floats(0, 90)
    )
    def finish(self, data: st.DataObject, outcome: Outcome, by: float) -> None:
        client = data.draw(st.sampled_from(self.running))
        self.running.remove(client)
        self.now += by
        assert client.placement is not None
        assert self.pool.finish(client.placement, outcome, self.now)
        assert not self.pool.finish(client.placement, outcome, self.now)
        self.settle()

    @precondition(lambda self: any(one.waits for one in self.clients))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([one for one in self.clients if one.waits]))
        assert client.ticket is not None
        client.gone = True
        self.flow.withdraw(client.ticket, QueueOutcome.EVICTED_CONTEXT_CANCELLED, self.now)
        self.settle()

    @rule(by=st.sampled_from((1.0, 50.0, 150.0, 500.0)))
    def wait(self, by: float) -> None:
        until = self.now + by
        while self.flow.next_ms <= until:
            self.now = max(self.now, self.flow.next_ms)
            self.settle()
        self.now = until

    @rule(count=st.integers(0, 4))
    def scale(self, count: int) -> None:
        if bool(count) is not self.pool.table.any_wanted:
            self.changed = self.now
        self.pool.apply_endpoints([spec_of(address) for address in ADDRESSES[:count]])
        self.settle()

    @rule(attempts=st.integers(1, 9))
    def retry(self, attempts: int) -> None:
        self.flow.retried(attempts)

    # ---- what always holds

    @invariant()
    def nobody_is_lost(self) -> None:
        assert len(self.flow.queue) == sum(one.waits for one in self.clients)
        assert len(self.pool.ledger) == len(self.running)

    @invariant()
    def endpoints_are_not_overfilled(self) -> None:
        assert (self.pool.table.requests <= EACH).all()

    @invariant()
    def room_is_not_left_unused(self) -> None:
        """Whoever waits finds what it may use of every endpoint full, or is at a limit of its own, or stands behind one
        of its own tenant who is."""
        table = self.pool.table
        for client in self.clients:
            if not client.waits:
                continue
            assert client.ticket is not None
            request = client.ticket.request
            allowed = [one for one in table.wanted() if request.subset is None or one.address in request.subset]
            beside = request.priority < 0 and self.now - self.others_ms < OTHERS_MS
            share = self.flow.room.settings.sheddable_share if beside else 1.0
            full = all(table.requests[one.slot] >= max(1.0, math.floor(share * EACH)) for one in allowed)
            limited = client.tenant == "limited" and self.sequences("limited") + 2 > LIMITED
            assert full or limited, client.ticket.why

    @invariant()
    def accounts_are_right(self) -> None:
        for tenant in ("a", "b", "limited"):
            assert self.flow.tenants.account(tenant, self.now).sequences == self.sequences(tenant)
        assert self.sequences("limited") <= LIMITED
        assert -30.0 <= self.flow.budget.left <= 3.0
        assert self.flow._backlog >= 0.0
        if not len(self.flow.queue):
            assert self.flow._backlog < 1e-6
        assert all(flow.counter >= 0.0 for band in self.flow.queue.bands for flow in band.flows())

    @invariant()
    def nobody_waits_beyond_its_time(self) -> None:
        assert self.flow.next_ms > self.now or not len(self.flow.queue)
        for one in self.clients:
            if one.waits and one.since >= self.changed:
                assert self.now - one.since < (TTL_MS if self.pool.table.any_wanted else EMPTY_TTL_MS)

    def sequences(self, tenant: str) -> int:
        return sum(one.placement.request.sequences for one in self.running if one.placement and one.tenant == tenant)


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
