"""One priority of the queue: its tenants, each with its tickets in order. Operations take O(log n)."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from poolpilot_picker.flow.fairness import FAR, fairness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from poolpilot_picker.config.flow_plugins import Fairness, Ordering, ProgramAwareParameters
    from poolpilot_picker.flow.holding import Ticket

IDLE_FLOWS: Final = 4_096
"""Tenants remembered per band that have nothing waiting; the longest idle go first."""


class TenantFlow:
    """One tenant's tickets of one priority, and what it has been charged."""

    __slots__ = (
        "attained",
        "attained_ms",
        "band",
        "bytes",
        "counter",
        "keys",
        "lanes",
        "stamp",
        "tenant",
        "tickets",
        "turn",
        "weight",
    )

    def __init__(self, tenant: str, band: Band, weight: float) -> None:
        self.tenant = tenant
        self.band = band
        self.weight = weight
        self.counter = 0.0
        """Charged so far, over the weight: never negative."""
        self.turn = 0.0
        self.attained = self.attained_ms = 0.0
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()
        """Waiting, in the order of arrival."""
        self.lanes: dict[object, OrderedDict[Ticket, None]] = {}
        """The same by what they can use: where the head finds no room, the first of another lane may."""
        self.keys: list[tuple[float, int, Ticket]] = []
        """Heap of (key, sequence, ticket) where the order is not that of arrival; withdrawn ones stay for a while."""
        self.bytes = 0
        self.stamp = 0
        """Of its newest entry in the band's heap: older ones are void."""

    def head(self) -> Ticket:
        """Who is next of this tenant; there is somebody."""
        keys = self.keys
        if not keys:
            return next(iter(self.tickets))
        while keys[0][2] not in self.tickets:
            heappop(keys)
        return keys[0][2]

    def others(self) -> Iterator[Ticket]:
        """The first of each lane but the head's."""
        head = self.head().lane
        return (next(iter(lane)) for key, lane in list(self.lanes.items()) if key != head and lane)

    def head_key(self) -> float:
        """Place of the head in the order."""
        return self.band.key(self.head())

    def head_wait(self, now: float) -> float:
        """How long the head has waited, ms."""
        return now - self.head().arrived_ms


class Band:
    """All tickets of one priority."""

    def __init__(
        self,
        priority: int,
        *,
        fairness_name: Fairness,
        ordering: Ordering,
        weight_of: Callable[[str], float],
        program_aware: ProgramAwareParameters,
    ) -> None:
        self.priority = priority
        self.count = self.bytes = 0
        self._ordering = ordering
        self._policy = fairness(fairness_name, program_aware)
        self._weight_of = weight_of
        self._flows: dict[str, TenantFlow] = {}
        self._idle: OrderedDict[TenantFlow, None] = OrderedDict()
        self._left = 0.0
        """Counter of the tenant that was served last of its own: who comes when nobody waits starts no lower."""
        self._ranked: list[tuple[float, float, int, TenantFlow]] = []
        """Heap of (rank, arrival of the head, stamp, flow) of the waiting; entries with an old stamp are void."""
        self._by_length: list[OrderedDict[TenantFlow, None]] = []
        """Waiting flows by their number of tickets − 1; the last one is not empty."""

    @property
    def waiting(self) -> int:
        """Tenants that wait."""
        return len(self._flows) - len(self._idle)

    def flows(self) -> Iterator[TenantFlow]:
        """Tenants that are remembered."""
        return iter(list(self._flows.values()))

    def flow(self, tenant: str) -> TenantFlow:
        """The tenant's; made where there is none."""
        flow = self._flows.get(tenant)
        if flow is None:
            flow = self._flows[tenant] = TenantFlow(tenant, self, self._weight_of(tenant))
            self._idle[flow] = None
            if len(self._idle) > IDLE_FLOWS:
                gone, _ = self._idle.popitem(last=False)
                del self._flows[gone.tenant]
        elif not flow.tickets:
            self._idle.move_to_end(flow)
        return flow

    def key(self, ticket: Ticket) -> float:
        """Place of a ticket among those of its tenant: by arrival, by the end of its patience, or by its SLO."""
        match self._ordering:
            case "fcfs":
                return ticket.arrived_ms
            case "edf":
                return ticket.arrived_ms + min(ticket.ttl_ms, FAR)
            case "slo-deadline":
                slo = ticket.request.slo_ttft_ms
                return FAR + ticket.arrived_ms if slo is None else ticket.arrived_ms + slo

    # ---- in and out

    def add(self, ticket: Ticket, now: float) -> None:
        """Takes a ticket in."""
        flow = self.flow(ticket.tenant)
        ticket.flow = flow
        lowest = self._lowest() if not flow.tickets else 0.0
        was = len(flow.tickets)
        flow.tickets[ticket] = None
        lane = flow.lanes.get(ticket.lane)
        if lane is None:
            lane = flow.lanes[ticket.lane] = OrderedDict()
        lane[ticket] = None
        if self._ordering != "fcfs":
            heappush(flow.keys, (self.key(ticket), ticket.sequence, ticket))
        flow.bytes += ticket.size_bytes
        self.count += 1
        self.bytes += ticket.size_bytes
        self._moved(flow, was)
        if not was:
            del self._idle[flow]
            self._policy.joined(flow, lowest, now)
            self.rerank(flow, now)
        elif flow.head() is ticket:
            self.rerank(flow, now)

    def remove(self, ticket: Ticket, now: float) -> None:
        """Lets a ticket go that is here."""
        flow: TenantFlow = ticket.flow
        was_head = not self._policy.sorted and flow.head() is ticket
        was = len(flow.tickets)
        del flow.tickets[ticket]
        lane = flow.lanes[ticket.lane]
        del lane[ticket]
        if not lane:
            del flow.lanes[ticket.lane]
        if self._ordering != "fcfs" and len(flow.keys) > 2 * len(flow.tickets) + 16:
            flow.keys = [entry for entry in flow.keys if entry[2] in flow.tickets]
            heapify(flow.keys)
        flow.bytes -= ticket.size_bytes
        self.count -= 1
        self.bytes -= ticket.size_bytes
        self._moved(flow, was)
        if not flow.tickets:
            flow.stamp += 1
            flow.keys.clear()
            self._idle[flow] = None
        elif was_head:
            self.rerank(flow, now)

    def _moved(self, flow: TenantFlow, was: int) -> None:
        """The flow has another number of tickets than before."""
        lengths, length = self._by_length, len(flow.tickets)
        if was:
            del lengths[was - 1][flow]
        if length:
            while len(lengths) < length:
                lengths.append(OrderedDict())
            lengths[length - 1][flow] = None
        while lengths and not lengths[-1]:
            lengths.pop()

    def longest(self) -> TenantFlow | None:
        """The tenant with the most tickets."""
        return next(iter(self._by_length[-1])) if self._by_length else None

    # ---- who is next

    def rerank(self, flow: TenantFlow, now: float) -> None:
        """The flow's rank may have changed."""
        if self._policy.sorted or not flow.tickets:
            return
        flow.stamp += 1
        heappush(self._ranked, (self._policy.rank(flow, now), flow.head().sequence, flow.stamp, flow))
        if len(self._ranked) > 4 * self.waiting + 64:
            self._ranked = [entry for entry in self._ranked if entry[2] == entry[3].stamp and entry[3].tickets]
            heapify(self._ranked)

    def _lowest(self) -> float:
        """The lowest counter of those that wait; where nobody does, of who was served last."""
        if self._policy.sorted:
            return 0.0
        if not self.count:
            return self._left
        self._sweep()
        return self._ranked[0][3].counter if self._ranked else self._left

    def _sweep(self) -> None:
        ranked = self._ranked
        while ranked and (ranked[0][2] != ranked[0][3].stamp or not ranked[0][3].tickets):
            heappop(ranked)

    def extremes(self, now: float, attained: Callable[[TenantFlow, float], float]) -> tuple[float, float]:
        """(most service, longest wait of a head) among the tenants that wait."""
        waiting = [flow for flow in self._flows.values() if flow.tickets]
        return max(attained(flow, now) for flow in waiting), max(flow.head_wait(now) for flow in waiting)

    def heads(self, now: float) -> Iterator[Ticket]:
        """The head of each waiting tenant, in the order in which they are to be tried. The queue may change between."""
        return (flow.head() for flow in self._by_rank(now))

    def others(self, now: float) -> Iterator[Ticket]:
        """In the same order, the first of each lane that is not the head's."""
        return (ticket for flow in self._by_rank(now) if len(flow.lanes) > 1 for ticket in flow.others())

    def _by_rank(self, now: float) -> Iterator[TenantFlow]:
        if self._policy.sorted:
            waiting = [flow for flow in self._flows.values() if flow.tickets]
            ranks = [(self._policy.rank(flow, now), flow.head().sequence, index) for index, flow in enumerate(waiting)]
            for _, _, index in sorted(ranks):
                if waiting[index].tickets:
                    yield waiting[index]
            return
        tried: list[tuple[float, float, int, TenantFlow]] = []
        try:
            while True:
                self._sweep()
                if not self._ranked:
                    return
                entry = heappop(self._ranked)
                tried.append(entry)
                yield entry[3]
        finally:
            for entry in tried:
                heappush(self._ranked, entry)

    # ---- charges

    def served(self, flow: TenantFlow, cost: float, now: float) -> None:
        """A request of the flow was dispatched, at this cost."""
        if not flow.tickets:
            self._left = flow.counter
        flow.counter += cost / flow.weight
        self._policy.served(flow, cost, now)
        if flow.tickets:
            self.rerank(flow, now)

    def passed(self, tenant: str, cost: float, now: float) -> TenantFlow:
        """A request that need not wait was dispatched: charged as if it had come and gone."""
        flow = self.flow(tenant)
        if not flow.tickets:
            self._policy.joined(flow, self._lowest(), now)
        self.served(flow, cost, now)
        return flow

    def correct(self, flow: TenantFlow, difference: float, now: float) -> None:
        """What was charged was too little, or too much."""
        flow.counter = max(0.0, flow.counter + difference / flow.weight)
        if flow.tickets:
            self.rerank(flow, now)
