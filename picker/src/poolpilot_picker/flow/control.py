"""Flow control of one pool: places a request that may go now, holds one that may not, and sheds what nothing is owed.

Sans I/O: whoever owns the clock calls `advance` when `kick` asks for it and when `next_ms` has come. Requests that are
no inference call are never held: nothing of their cost is known, and upgrades would hang.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from poolpilot_picker.config.flow_plugins import StaticLimitParameters
from poolpilot_picker.errors import NoEndpoints, RequestRefused, TooManyRequests
from poolpilot_picker.flow import admission
from poolpilot_picker.flow.charges import Charge, PriceList, generated
from poolpilot_picker.flow.client_retries import ClientRetries
from poolpilot_picker.flow.holding import QueueOutcome, Ticket
from poolpilot_picker.flow.keeping import KeptRoom
from poolpilot_picker.flow.queue import FlowQueue, QueueFull
from poolpilot_picker.flow.retries import RetryBudget
from poolpilot_picker.flow.room import NoRoom, Room
from poolpilot_picker.flow.saturation import Gate, OwnDetector
from poolpilot_picker.flow.tenants import DEFAULT_TENANT, TENANT_LIMIT, Tenants
from poolpilot_picker.flow.throughput import Throughput
from poolpilot_picker.instruments.flow_metrics import FlowReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from poolpilot_picker.flow.bands import TenantFlow
    from poolpilot_picker.flow.flow_settings import FlowSettings
    from poolpilot_picker.flow.holding import Bodies, Waiter
    from poolpilot_picker.flow.pool import Placement, Pool
    from poolpilot_picker.flow.tenants import TenantAccount
    from poolpilot_picker.instruments.flow_metrics import FlowMetrics
    from poolpilot_picker.requests.request import InferenceRequest

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Dispatches in one call of `advance`: then others have their turn."""
TRIES: Final = 8
"""Heads of one lane that find no room before the rest of it is taken to find none either."""
MOST_TRIES: Final = 4 * TRIES
"""Of all lanes: then the round ends."""
LOOK_AGAIN_MS: Final = 20.0
"""Where other processes place requests in the same pool."""
SLACK: Final = 1.25
"""The data plane waits longer than the queue by this factor, so that the queue answers first: 1 ÷ 0.8."""


class FlowControl:
    """Holder of one pool's queue; told by the pool of ends, endpoints and telemetry (`Pool.flow`)."""

    def __init__(self, pool: Pool, settings: FlowSettings, metrics: FlowMetrics | None = None) -> None:
        self.pool = pool
        self.settings = settings
        self.queue = FlowQueue(settings.queue)
        self.room = Room(settings.room)
        self.kick: Callable[[], None] = _nothing
        """Asks for a call of `advance`, soon."""
        self.next_ms = math.inf
        """When to call `advance` although nobody asks."""
        self.budget = RetryBudget(settings.retries)
        self.client_retries = ClientRetries()
        self.tenants = Tenants(settings.default_tenant, settings.tenants)
        detector = settings.detector or OwnDetector(self.room)
        self.gate = Gate(detector, settings.ceiling)
        self._gated = settings.detector is not None or settings.ceiling != StaticLimitParameters()
        """Late binding alone decides otherwise."""
        self._admitters = [*settings.admitters]
        if settings.drop_sheddable and settings.detector is not None:
            self._admitters.append(admission.SaturationAdmitter(detector))
        self.bodies: Bodies | None = None
        """What all that waits here or arrives may hold; None: no bound but the queue's."""
        self._metrics = metrics
        self._prices = PriceList()
        self._throughput = Throughput()
        self._backlog = 0.0
        self._refilled_ms = math.inf
        """When a tenant that waits will have tokens again."""
        self._due = False
        self._kept = KeptRoom()
        if metrics is not None:
            metrics.watch(self)

    # ---- in

    def submit(self, request: InferenceRequest, waiter: Waiter, now: float) -> Placement | Ticket:
        """Places the request, or holds it. Raises RequestRefused."""
        if not request.is_inference:
            return self.pool.place(request, now)
        if (sign := self.client_retries.came(request, now)) is not None:
            self.budget.retried(2)
            if self._metrics is not None:
                self._metrics.client_retried(sign)
        tenant = request.tenant or DEFAULT_TENANT
        account = self.tenants.account(tenant, now)
        try:
            if account.bounded:
                self.tenants.check(account, request)
                if request.ceiling is not None and self._metrics is not None:
                    self._metrics.clamped()
            if self._admitters:
                admission.check(self._admitters, request, self.pool, now)
            present, why = self.pool.table.any_wanted, "requests ahead of it"
            if present and not len(self.queue):
                if account.bounded and (lacking := account.lacks(request.sequences)):
                    why = lacking
                elif self._gated and not self._open(request.priority, now):
                    why = "the pool is saturated"
                else:
                    try:
                        placement = self._place(request, account, None, now)
                    except NoRoom as full:
                        why = full.why
                    else:
                        if self._metrics is not None:
                            self._metrics.passed(request, tenant)
                        return placement
            elif not present:
                why = "the pool has no endpoints"
            return self._hold(request, waiter, tenant, account, why, now)
        except RequestRefused as refused:
            if self._metrics is not None:
                self._metrics.ended(request, tenant, _rejection(refused), 0.0)
            raise

    def _hold(
        self, request: InferenceRequest, waiter: Waiter, tenant: str, account: TenantAccount, why: str, now: float
    ) -> Ticket:
        pool, queue = self.pool, self.queue
        queue.endpoints(pool.table.any_wanted, now)
        if self.settings.drop_sheddable and request.priority < 0 and pool.table.any_wanted:
            raise TooManyRequests(admission.MESSAGE)
        prompt = float(request.prompt_tokens)
        expected = pool.lengths.expected(request.target_model, request.tenant, request.max_tokens)
        uncached = prompt
        if prompt > self.settings.room.short_tokens and len(pool.table):
            uncached = prompt - float(pool.prefixes.match(request.prefix, prompt - 1.0).max())
        ticket = Ticket(
            request=request,
            waiter=waiter,
            arrived_ms=now,
            tenant=tenant,
            priority=request.priority,
            size_bytes=request.body_bytes,
            cost=self._prices.at(pool.table, now).cost(uncached, prompt, expected, request.sequences),
            uncached_tokens=uncached,
            ttl_ms=queue.ttl_ms(request.priority, request.queue_ttl_ms),
            lane=(request.target_model, request.adapter, pool.meant(request, now), self._is_short(uncached)),
            why=why,
        )
        self._check_share(tenant, account, request.priority, now)
        if self.bodies is not None and self.bodies.full:
            raise self._full(now)
        try:
            victims = queue.offer(ticket, now)
        except QueueFull:
            raise self._full(now) from None
        self._backlog += ticket.cost
        if self._metrics is not None:
            self._metrics.queued(ticket)
        for victim in victims:
            lower = victim.priority < ticket.priority
            reason = "evicted-priority" if lower else "evicted-queue-pressure"
            refused = TooManyRequests(
                "evicted from the queue by a request of higher value",
                dropped_reason=reason,
                retry_after_s=self.retry_after_s(now),
            )
            self._turn_away(victim, QueueOutcome.EVICTED_OTHER, refused, now)
        self.wake()
        return ticket

    def _is_short(self, uncached: float) -> bool:
        return uncached <= self.settings.room.short_tokens

    def _check_share(self, tenant: str, account: TenantAccount, priority: int, now: float) -> None:
        """Raises TooManyRequests where the tenant fills its share of the queue."""
        share = account.limits.queue_share
        if share >= 1.0:
            return
        settings = self.settings.queue
        most = min(settings.of(priority).max_requests, settings.most_requests)
        if len(self.queue.band(priority).flow(tenant).tickets) + 1 > max(1.0, share * most):
            raise TooManyRequests(
                f"the tenant has {share:g} of the queue, and fills it",
                dropped_reason=TENANT_LIMIT,
                retry_after_s=self.retry_after_s(now),
            )

    def _full(self, now: float) -> RequestRefused:
        if not self.pool.table.any_wanted:
            return NoEndpoints("no endpoints available: the queue is full", retry_after_s=self.retry_after_s(now))
        return TooManyRequests("the queue is full", retry_after_s=self.retry_after_s(now))

    def _open(self, priority: int, now: float) -> bool:
        self.queue.band(priority)
        priorities = [band.priority for band in self.queue.bands]
        return self.gate.open(priority, priorities, self.gate.saturation(self.pool, now))

    # ---- out

    def _place(self, request: InferenceRequest, account: TenantAccount, ticket: Ticket | None, now: float) -> Placement:
        """Places and charges. Raises NoRoom, RequestRefused, or what else placing raises."""
        pool = self.pool
        self.room.chosen = pool.policy.weighs_waits
        placement = pool.place(request, now, self.room.narrow)
        short = self.room.placed(placement, pool.table, now)
        predicted, sequences, prompt = placement.predicted, request.sequences, float(request.prompt_tokens)
        prices = self._prices.at(pool.table, now)
        cost = prices.cost(predicted.uncached_tokens, prompt, predicted.output_tokens, sequences)
        tokens = prompt + sequences * predicted.output_tokens
        flow: TenantFlow
        if ticket is None:
            flow = self.queue.band(request.priority).passed(account.tenant, cost, now)
        else:
            flow = ticket.flow
            self.queue.take(ticket, cost, now)
        placement.charge = Charge(flow, account, prices, cost, tokens, sequences, short)
        account.begin(sequences, tokens)
        self._throughput.add(cost, now)
        if not self.budget.request():
            placement.destination, placement.once = placement.destination.partition(",")[0], True
        return placement

    def advance(self, now: float) -> None:
        """Answers those whose time is over and dispatches those that have room; then `next_ms` is set anew."""
        self._due = False
        queue, table = self.queue, self.pool.table
        queue.endpoints(table.any_wanted, now)
        self.pool.catch_up(now)
        for ticket in queue.expire(now):
            self._expired(ticket, now)
        left, self._refilled_ms = AT_ONCE, math.inf
        while left and len(queue) and table.any_wanted and self._dispatch(now):
            left -= 1
        if not left:
            self.wake()
        expiry = queue.next_expiry()
        self.next_ms = math.inf if expiry is None else expiry
        if len(queue) and table.any_wanted:
            self.next_ms = min(self.next_ms, self.room.next_ms(table, now), self._refilled_ms)
            if table.sharing is not None:
                # Nobody tells when a request of another process ends.
                self.next_ms = min(self.next_ms, now + LOOK_AGAIN_MS)

    def _dispatch(self, now: float) -> bool:
        """Dispatches one; False where nobody can go."""
        if not self.room.any(self.pool.table, now):
            return False
        self._kept.begin()
        saturation = self.gate.saturation(self.pool, now) if self._gated else 0.0
        with contextlib.closing(self.queue.heads(now)) as heads:
            ticket, placement = self._first_that_fits(heads, saturation, now)
        if ticket is None:
            with contextlib.closing(self.queue.others(now)) as others:
                ticket, placement = self._first_that_fits(others, saturation, now)
        if ticket is None:
            return False
        self._backlog = max(0.0, self._backlog - ticket.cost)
        if placement is None:
            return True
        if self._metrics is not None:
            self._metrics.left(ticket, QueueOutcome.DISPATCHED, now)
        self._tell(lambda: ticket.waiter.dispatched(placement, now))
        return True

    def _first_that_fits(
        self, heads: Iterator[Ticket], saturation: float, now: float
    ) -> tuple[Ticket | None, Placement | None]:
        """Places one of `heads`. (ticket, None): it left the queue in another way; (None, None): no one can go."""
        priorities = [band.priority for band in self.queue.bands]
        tries: Counter[object] = Counter()
        for ticket in heads:
            if tries[ticket.lane] >= TRIES:
                continue
            account = self.tenants.account(ticket.tenant, now)
            if account.bounded and (lacking := account.lacks(ticket.request.sequences)):
                ticket.why = lacking
                if wait_ms := account.refilled_in_ms:
                    self._refilled_ms = min(self._refilled_ms, now + wait_ms)
                continue
            if self._gated and not self.gate.open(ticket.priority, priorities, saturation):
                ticket.why = "the pool is saturated"
                break
            if ticket.priority < 0 and not self.room.any(self.pool.table, now, ticket.priority):
                # Nor has any behind it: it is one of the lowest priorities.
                ticket.why = "no endpoint has room for what may be shed"
                break
            short = self._is_short(ticket.uncached_tokens)
            self.room.kept = self._kept.barred(ticket, self.pool.table.eligible, now, short=short)
            self.room.overdue = ticket.overdue_ms <= now
            ticket.request.queued_ms, ticket.request.queued_for = now - ticket.arrived_ms, ticket.why
            began = 0.0 if self._metrics is None else self._metrics.clock()
            try:
                placement = self._place(ticket.request, account, ticket, now)
                if self._metrics is not None:
                    self._metrics.decided(began)
                return ticket, placement
            except NoRoom as full:
                ticket.why = full.why
                self._kept.found_none(ticket, full.nearest, full.among)
            except RequestRefused as refused:
                self.queue.withdraw(ticket, now)
                self._turn_away(ticket, _rejection(refused), refused, now, backlog=False)
                return ticket, None
            except Exception:
                self.queue.withdraw(ticket, now)
                if self._metrics is not None:
                    self._metrics.left(ticket, QueueOutcome.DISPATCHED, now)
                ticket.waiter.unplaceable(now)
                return ticket, None
            finally:
                self.room.kept, self.room.overdue = None, False
            tries[ticket.lane] += 1
            if tries.total() >= MOST_TRIES:
                break
        return None, None

    def _expired(self, ticket: Ticket, now: float) -> None:
        waited = (now - ticket.arrived_ms) / 1000.0
        refused: RequestRefused
        if self.pool.table.any_wanted:
            outcome = QueueOutcome.EVICTED_TTL
            refused = TooManyRequests(
                f"request timed out in queue: it waited {waited:.1f} s for {ticket.why}",
                dropped_reason="rejected-ttl-expired",
                retry_after_s=self.retry_after_s(now),
            )
        else:
            outcome = QueueOutcome.EVICTED_NO_ENDPOINTS
            refused = NoEndpoints(
                f"request timed out in queue and no endpoints are available: it waited {waited:.1f} s",
                retry_after_s=self.retry_after_s(now),
            )
        self._turn_away(ticket, outcome, refused, now)

    def _turn_away(
        self, ticket: Ticket, outcome: QueueOutcome, refused: RequestRefused, now: float, *, backlog: bool = True
    ) -> None:
        if backlog:
            self._backlog = max(0.0, self._backlog - ticket.cost)
        if self._metrics is not None:
            self._metrics.left(ticket, outcome, now)
        self._tell(lambda: ticket.waiter.turned_away(refused, now))

    def _tell(self, what: Callable[[], None]) -> None:
        """One waiter's fault must not cost the others their turn."""
        try:
            what()
        except Exception:
            log.exception("an exchange failed when it was told what became of its request")

    def withdraw(self, ticket: Ticket, outcome: QueueOutcome, now: float) -> None:
        """Nobody waits for the ticket any more: its place is free at once."""
        if self.queue.withdraw(ticket, now):
            self._backlog = max(0.0, self._backlog - ticket.cost)
            if self._metrics is not None:
                self._metrics.left(ticket, outcome, now)

    # ---- ends

    def finished(self, placement: Placement, now: float) -> None:
        """Corrects what was charged for a request by what it took."""
        charge = placement.charge
        if charge is None or charge.settled:
            return
        charge.settled = True
        request, booking = placement.request, placement.booking
        self.room.ended(booking, short=charge.short)
        prompt, sequences = float(request.prompt_tokens), charge.sequences
        output = generated(placement, self.pool.table, now)
        uncached = booking.uncached_tokens
        true = charge.prices.cost(uncached, prompt, output / sequences, sequences)
        flow: TenantFlow = charge.flow
        flow.band.correct(flow, true - charge.cost, now)
        account: TenantAccount = charge.account
        account.end(sequences, prompt + output - charge.tokens)
        self.wake()

    def retried(self, attempts: int) -> None:
        """A request took so many attempts."""
        self.budget.retried(attempts)

    def unserved(self, request: InferenceRequest, now: float) -> None:
        """Its exchange has ended without a good answer: if it comes again, it is a retry."""
        if request.is_inference:  # as in `submit`, which asks of no others
            self.client_retries.failed(request, now)

    # ---- what others ask

    def wake(self) -> None:
        """There may be room, or something to answer."""
        if not self._due and len(self.queue):
            self._due = True
            self.kick()

    def patience_ms(self, ticket: Ticket) -> float:
        """How long the data plane must wait, so that it does not answer before us."""
        settings = self.settings.queue
        longest = max(ticket.ttl_ms, settings.no_endpoint_ttl_ms) + ticket.ttl_ms
        return min(SLACK * min(longest, settings.most_ttl_ms), self.settings.gateway_ms)

    def predicted_wait_ms(self, now: float) -> float:
        """Of a request that came now, behind all that wait; NaN where nothing is known of the pool's pace."""
        pace = self._throughput.per_ms(now)
        if not len(self.queue):
            return 0.0
        return self._backlog / pace if pace > 0.0 else math.nan

    def retry_after_s(self, now: float) -> float:
        """When a client should come again: after the queue of now is served, within 1 s and a minute."""
        wait = self.predicted_wait_ms(now)
        return 5.0 if math.isnan(wait) else min(60.0, max(1.0, wait / 1000.0))

    def reading(self, now: float) -> FlowReading:
        """Of the moment, for metrics: may be read in another thread, while endpoints change."""
        queue, settings = self.queue, self.queue.settings
        try:
            saturation = self.gate.saturation(self.pool, now)
        except (ValueError, IndexError):  # columns were replaced between two reads
            saturation = math.nan
        return FlowReading(
            saturation=saturation,
            oldest_s=queue.oldest_ms(now) / 1000.0,
            predicted_wait_s=self.predicted_wait_ms(now) / 1000.0,
            retry_budget=self.budget.left,
            requests=len(queue),
            bytes=queue.bytes,
            most_requests=settings.most_requests,
            most_bytes=settings.most_bytes,
            bands=queue.filled(),
        )


def _rejection(refused: RequestRefused) -> QueueOutcome:
    if isinstance(refused, NoEndpoints):
        return QueueOutcome.REJECTED_NO_ENDPOINTS
    if isinstance(refused, TooManyRequests) and refused.dropped_reason != TENANT_LIMIT:
        return QueueOutcome.REJECTED_CAPACITY
    return QueueOutcome.REJECTED_OTHER


def _nothing() -> None:
    """Until somebody owns the clock."""
