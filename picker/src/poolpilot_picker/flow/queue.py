"""The shared queue of one pool: who waits, in which order, until when, and who must go when it is full.

Sans I/O: time (ms) is an argument. Priorities are strict, but a request that has waited for its band's `ageing_ms` is
overdue, unless its priority is negative: of OVERDUE_TURN requests dispatched while one is overdue, one is the longest
overdue. So an overdue request with m overdue ahead of it goes after at most OVERDUE_TURN × (m + 1) dispatches, and
nobody waits beyond its TTL.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.config.flow_plugins import Fairness, Ordering, ProgramAwareParameters
from poolpilot_picker.flow.bands import Band, TenantFlow

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from poolpilot_picker.flow.holding import Ticket

OVERDUE_TURN: Final = 8
MOST_VICTIMS: Final = 32
"""A request takes the place of at most so many others."""


class BandSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of the tickets of one priority."""

    max_requests: int = 5_000
    max_bytes: int = 1_000_000_000
    ttl_ms: float | None = None
    """None: that of the queue."""
    ageing_ms: float = 15_000.0
    fairness: Fairness = "virtual-token-counter"
    ordering: Ordering = "fcfs"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one queue. A limit that is None is none."""

    max_requests: int | None = None
    max_bytes: int | None = None
    ttl_ms: float = 60_000.0
    no_endpoint_ttl_ms: float = 60_000.0
    """Of a request whose pool has no endpoints."""
    most_ttl_ms: float = math.inf
    """No TTL is longer, whoever asks for it: the data plane waits no longer."""
    default_band: BandSettings = BandSettings()
    negative_band: BandSettings | None = None
    """Of priorities below 0; None: as the others."""
    bands: Mapping[int, BandSettings] = {}
    weights: Mapping[str, float] = {}
    """Shares of tenants; of others: 1."""
    program_aware: ProgramAwareParameters = ProgramAwareParameters()

    @property
    def most_requests(self) -> float:
        """Of all bands together."""
        return math.inf if self.max_requests is None else self.max_requests

    @property
    def most_bytes(self) -> float:
        """Of all bands together."""
        return math.inf if self.max_bytes is None else self.max_bytes

    def of(self, priority: int) -> BandSettings:
        """The settings of a priority's band."""
        known = self.bands.get(priority)
        if known is not None:
            return known
        return self.negative_band if priority < 0 and self.negative_band is not None else self.default_band


class QueueFull(Exception):  # noqa: N818 - says what happened
    """There is no place, and nothing of less value that could go."""


class FlowQueue:
    """Holds tickets. Whoever drives it asks for `heads`, tries them, and tells what it `take`s."""

    def __init__(self, settings: QueueSettings | None = None) -> None:
        self.settings = settings or QueueSettings()
        self.bytes = 0
        self._bands: dict[int, Band] = {}
        self._order: list[int] = []
        """Priorities, highest first."""
        self._tickets: OrderedDict[Ticket, None] = OrderedDict()
        """In the order of arrival."""
        self._expiry: list[tuple[float, int, Ticket]] = []
        self._ageing: list[tuple[float, int, Ticket]] = []
        self._sequence = 0
        self._young = 0
        """Dispatched while somebody was overdue, since the longest overdue one went."""
        self._endpoints = True
        self._since_ms = -math.inf
        """Since when the pool has, or has not, had endpoints."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._tickets

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets))

    @property
    def bands(self) -> list[Band]:
        """Highest priority first."""
        return [self._bands[priority] for priority in self._order]

    def band(self, priority: int) -> Band:
        """The band of a priority; made where there is none."""
        band = self._bands.get(priority)
        if band is None:
            settings = self.settings.of(priority)
            weights = self.settings.weights
            band = self._bands[priority] = Band(
                priority,
                fairness_name=settings.fairness,
                ordering=settings.ordering,
                weight_of=lambda tenant: weights.get(tenant, 1.0),
                program_aware=self.settings.program_aware,
            )
            self._order = sorted(self._bands, reverse=True)
        return band

    def ttl_ms(self, priority: int, wanted: float | None) -> float:
        """How long a request of this priority may wait: by its band, or less where it asks for less."""
        band, settings = self.settings.of(priority), self.settings
        ttl = settings.ttl_ms if band.ttl_ms is None else band.ttl_ms
        return min(ttl, settings.most_ttl_ms, math.inf if wanted is None else wanted)

    # ---- in

    def offer(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Takes a ticket in; returns those that had to go for it. Raises QueueFull, and nothing has changed."""
        victims = self._victims(ticket)
        for victim in victims:
            self._remove(victim, now)
        self._sequence += 1
        ticket.sequence = self._sequence
        # Nothing is owed to what may be shed: it would take from the rest just when there is too much of it.
        patience = self.settings.of(ticket.priority).ageing_ms if ticket.priority >= 0 else math.inf
        ticket.overdue_ms = ticket.arrived_ms + patience
        self.band(ticket.priority).add(ticket, now)
        self._tickets[ticket] = None
        self.bytes += ticket.size_bytes
        self._expires(ticket)
        heappush(self._ageing, (ticket.overdue_ms, ticket.sequence, ticket))
        return victims

    def _victims(self, ticket: Ticket) -> list[Ticket]:
        """Who must go for a ticket, least valuable first."""
        band, settings, limits = self.band(ticket.priority), self.settings, self.settings.of(ticket.priority)
        requests = settings.most_requests - len(self) - 1
        size = settings.most_bytes - self.bytes - ticket.size_bytes
        band_requests = limits.max_requests - band.count - 1
        band_size = limits.max_bytes - band.bytes - ticket.size_bytes
        victims: dict[Ticket, None] = {}
        taken: dict[TenantFlow, int] = {}
        while min(requests, size, band_requests, band_size) < 0:
            own_band = min(band_requests, band_size) < 0
            victim = self._least_valuable(ticket, victims, taken, own_band=own_band)
            if victim is None or len(victims) >= MOST_VICTIMS:
                raise QueueFull
            victims[victim] = None
            taken[victim.flow] = taken.get(victim.flow, 0) + 1
            requests += 1
            size += victim.size_bytes
            if victim.priority == ticket.priority:
                band_requests += 1
                band_size += victim.size_bytes
        return list(victims)

    def _least_valuable(
        self, ticket: Ticket, victims: dict[Ticket, None], taken: dict[TenantFlow, int], *, own_band: bool
    ) -> Ticket | None:
        """The newest of a lower priority; in its own band, the newest of a tenant with more waiting than its own."""
        if not own_band:
            for priority in reversed(self._order):
                if priority >= ticket.priority:
                    break
                found = self._newest_of_longest(self._bands[priority], victims, taken, least=0)
                if found is not None:
                    return found
        band = self._bands[ticket.priority]
        own = len(band.flow(ticket.tenant).tickets) + 1
        return self._newest_of_longest(band, victims, taken, least=own)

    @staticmethod
    def _newest_of_longest(
        band: Band, victims: dict[Ticket, None], taken: dict[TenantFlow, int], *, least: int
    ) -> Ticket | None:
        flow = band.longest()
        if flow is not None and taken:
            # Rare: several have to go for one.
            flows = [one for one in band.flows() if one.tickets]
            flow = max(flows, key=lambda one: len(one.tickets) - taken.get(one, 0), default=None)
        if flow is None or len(flow.tickets) - taken.get(flow, 0) <= least:
            return None
        return next(one for one in reversed(flow.tickets) if one not in victims)

    # ---- out

    def withdraw(self, ticket: Ticket, now: float) -> bool:
        """Lets a ticket go; False where it is not here any more."""
        if ticket not in self._tickets:
            return False
        self._remove(ticket, now)
        return True

    def _remove(self, ticket: Ticket, now: float) -> None:
        del self._tickets[ticket]
        self.bytes -= ticket.size_bytes
        self._bands[ticket.priority].remove(ticket, now)
        self._ageing = self._swept(self._ageing)
        self._expiry = self._swept(self._expiry)

    def _swept(self, heap: list[tuple[float, int, Ticket]]) -> list[tuple[float, int, Ticket]]:
        """The heap, without those that are gone where they are many."""
        if len(heap) <= 2 * len(self._tickets) + 64:
            return heap
        kept = [entry for entry in heap if entry[2] in self._tickets]
        heapify(kept)
        return kept

    def take(self, ticket: Ticket, cost: float, now: float) -> None:
        """A ticket is dispatched, at this cost."""
        band, flow = self._bands[ticket.priority], ticket.flow
        longest = self._overdue(now)
        if longest is ticket:
            self._young = 0
        elif longest is not None:
            self._young += 1
        self._remove(ticket, now)
        band.served(flow, cost, now)

    # ---- time

    def endpoints(self, present: bool, now: float) -> None:
        """Whether the pool has endpoints: patience begins anew when that changes."""
        if present is self._endpoints:
            return
        self._endpoints, self._since_ms = present, now
        self._expiry = []
        for ticket in self._tickets:
            self._expires(ticket)

    def _expires(self, ticket: Ticket) -> None:
        settings = self.settings
        ttl = ticket.ttl_ms if self._endpoints else min(settings.no_endpoint_ttl_ms, settings.most_ttl_ms)
        # What the data plane waits began with the request, and knows nothing of endpoints.
        last = ticket.arrived_ms + settings.most_ttl_ms
        ticket.expires_ms = min(max(ticket.arrived_ms, self._since_ms) + ttl, last)
        heappush(self._expiry, (ticket.expires_ms, ticket.sequence, ticket))

    def expire(self, now: float) -> list[Ticket]:
        """Lets those go whose time is over."""
        gone: list[Ticket] = []
        while (expires := self.next_expiry()) is not None and expires <= now:
            ticket = self._expiry[0][2]
            gone.append(ticket)
            self._remove(ticket, now)
        return gone

    def next_expiry(self) -> float | None:
        """When the first of those that wait has waited enough."""
        heap = self._expiry
        while heap and heap[0][2] not in self._tickets:
            heappop(heap)
        return heap[0][0] if heap else None

    def _overdue(self, now: float) -> Ticket | None:
        heap = self._ageing
        while heap and heap[0][2] not in self._tickets:
            heappop(heap)
        return heap[0][2] if heap and heap[0][0] <= now else None

    # ---- who is next

    def overdue_turn(self, now: float) -> bool:
        """Somebody is overdue, and next before all others."""
        return self._overdue(now) is not None and self._young >= OVERDUE_TURN - 1

    def heads(self, now: float) -> Generator[Ticket]:
        """Those who may be next, in the order in which they are to be tried; a ticket may come twice."""
        longest = self._overdue(now)
        if longest is not None and self._young >= OVERDUE_TURN - 1:
            yield longest
        for priority in self._order:
            yield from self._bands[priority].heads(now)

    def others(self, now: float) -> Generator[Ticket]:
        """Those behind a head of their tenant's that may have room where it has none, in the same order."""
        for priority in self._order:
            yield from self._bands[priority].others(now)

    def oldest_ms(self, now: float) -> float:
        """How long the one has waited that came first; 0 where nobody waits."""
        first = next(iter(self._tickets), None)
        return 0.0 if first is None else now - first.arrived_ms

    def filled(self) -> list[tuple[int, float, float]]:
        """Of each band: priority, the shares of its requests and of its bytes that are taken."""
        limits = [(band, self.settings.of(band.priority)) for band in self.bands]
        return [
            (band.priority, _share(band.count, most.max_requests), _share(band.bytes, most.max_bytes))
            for band, most in limits
        ]


def _share(used: float, most: float) -> float:
    return used / most if most else 1.0
