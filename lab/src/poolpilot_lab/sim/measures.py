"""From a record to figures: the row that `results.json` holds, and further ones that the report uses."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from poolpilot_lab.sim.fleet import START_MS
from poolpilot_lab.sim.trip import Fate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolpilot_lab.sim.fleet import Record
    from poolpilot_lab.sim.limits import Limits
    from poolpilot_lab.sim.trip import Trip
    from poolpilot_lab.sim.world import Slo, World

SHORTEST_OUTPUT: Final = 11
"""Output tokens from which on time per output token means something."""
STARVED_FACTOR: Final = 10.0
STARVED_MS: Final = 30_000.0
"""Starved: waited longer than 30 s and than ten times what the request needs alone."""
PROMPT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
"""Service in tokens as fair queueing counts it (VTC)."""


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed; infinite ones included. NaN of nothing."""
    return quantiles(values, [share])[0]


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """The same for several shares."""
    if not values:
        return [math.nan] * len(shares)
    ordered = sorted(values)
    return [ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in shares]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, infinite when one value is. NaN of nothing."""
    return sum(values) / len(values) if values else math.nan


def good(trip: Trip, slo: Slo) -> bool:
    """Answered within both targets."""
    ttft, tpot = slo.of(trip.call.label)
    return trip.ttft_ms <= ttft and (trip.call.output_tokens < SHORTEST_OUTPUT or trip.tpot_ms <= tpot)


def row(record: Record, slo: Slo, limits: Limits) -> dict[str, Any]:
    """What `results.json` says of one run, but for what identifies it and for the oracle's mean."""
    trips, alone = _counted(record, limits)
    served = [trip for trip in trips if trip.fate is Fate.SERVED]
    ttft = [trip.ttft_ms for trip in trips]
    e2e = [trip.e2e_ms for trip in trips]
    seconds = (record.end_ms - record.begin_ms) / 1000.0
    waits = [_adapter_wait(trip) for trip in served if trip.call.adapter]
    made: dict[str, Any] = {
        "requests": len(trips),
        "admitted": sum(trip.fate is not Fate.REFUSED for trip in trips) / max(1, len(trips)),
        "starved": _starved(trips, alone),
        "ttft_mean_ms": mean(ttft),
        "ttft_p50_ms": quantile(ttft, 0.5),
        "ttft_p99_ms": quantile(ttft, 0.99),
        "e2e_p50_ms": quantile(e2e, 0.5),
        "e2e_p99_ms": quantile(e2e, 0.99),
        "tpot_p99_ms": quantile(_tpots(trips), 0.99),
        "goodput_rps": sum(good(trip, slo) for trip in trips) / seconds,
        "output_tok_s": record.output_tokens / seconds,
        "cached_token_share": sum(trip.cached_tokens for trip in served)
        / max(1, sum(trip.call.prompt_tokens for trip in served)),
        "reuse_ceiling": limits.reuse,
        "limit_ttft_mean_ms": limits.mean_ms,
        "limit_ttft_p99_ms": limits.p99_ms,
        "adapter_loads": record.adapter_loads,
        "adapter_wait_p99_ms": quantile(waits, 0.99) if waits else 0.0,
        "fairness_gap_tokens": fairness_gap(trips),
        "load_cv": record.load_cv,
        "load_max_over_mean": record.load_max_over_mean,
    }
    by_class = _split(trips, lambda trip: trip.call.label)
    by_tenant = _split(trips, lambda trip: trip.call.tenant)
    if by_class:
        made["by_class"] = by_class
    if by_tenant:
        made["by_tenant"] = by_tenant
    return made


def details(record: Record, slo: Slo, limits: Limits) -> dict[str, Any]:
    """Figures beside the row: for the report and for paired comparisons."""
    trips, alone = _counted(record, limits)
    e2e = [trip.e2e_ms for trip in trips]
    ttft = [trip.ttft_ms for trip in trips]
    slowdown = [late / ideal for late, ideal in zip(ttft, alone, strict=False)]
    placed: dict[int, int] = defaultdict(int)
    for trip in trips:
        placed[trip.endpoint] += 1
    lost = [trip for trip in trips if trip.fate in (Fate.LOST, Fate.FAILED)]
    return {
        "e2e_mean_ms": mean(e2e),
        "alone_mean_ms": mean(limits.l1_ms),
        "ttft_p90_ms": quantile(ttft, 0.9),
        "tpot_mean_ms": mean(_tpots(trips)),
        "good_share": sum(good(trip, slo) for trip in trips) / max(1, len(trips)),
        "slowdown_p50": quantile(slowdown, 0.5),
        "slowdown_p99": quantile(slowdown, 0.99),
        "longest_wait_ms": max(ttft, default=math.nan),
        "preemptions": record.preemptions,
        "longest_prompt_tokens": max((trip.call.prompt_tokens for trip in trips), default=0),
        "dearest_tokens": max((_service(trip) for trip in trips), default=0.0),
        "failed": len(lost),
        "placed_by_endpoint": {str(endpoint): count for endpoint, count in sorted(placed.items())},
        "loads": _thinned(record),
        "ttft_quantiles_ms": quantiles(ttft, [share / 100 for share in range(1, 101)]),
    }


def timeline(record: Record, world: World) -> dict[str, Any]:
    """What happened when, and how requests fared that came before and after: seconds from the first arrival on."""
    start = min(trip.arrived_ms for trip in record.trips)
    span = record.end_ms - START_MS
    return {
        "changes": [
            [(START_MS + change.at_share * span - start) / 1000.0, change.kind, change.endpoint]
            for change in world.changes
        ],
        "arrived_s": [round((trip.arrived_ms - start) / 1000.0, 2) for trip in record.measured],
        "endpoint": [trip.endpoint for trip in record.measured],
        "ttft_ms": [round(trip.ttft_ms, 1) for trip in record.measured],
        "lost_before_start": sum(
            trip.fate in (Fate.LOST, Fate.OPEN) and trip.first_ms == math.inf for trip in record.measured
        ),
    }


def _service(trip: Trip) -> float:
    return PROMPT_WEIGHT * trip.call.prompt_tokens + OUTPUT_WEIGHT * trip.call.output_tokens


def _thinned(record: Record, points: int = 100) -> dict[str, list[Any]]:
    """Sequences at each endpoint over time, for a plot: seconds since the window began, and one list per endpoint."""
    kept = record.loads[:: max(1, len(record.loads) // points)]
    return {
        "seconds": [round((at - record.begin_ms) / 1000.0, 1) for at, _ in kept],
        "endpoints": [list(loads) for loads in zip(*(loads for _, loads in kept), strict=True)],
    }


def _tpots(trips: Iterable[Trip]) -> list[float]:
    return [
        trip.tpot_ms if trip.fate is Fate.SERVED else math.inf
        for trip in trips
        if trip.call.output_tokens >= SHORTEST_OUTPUT
    ]


def _counted(record: Record, limits: Limits) -> tuple[list[Trip], list[float]]:
    """Trips whose clients do not leave, and what each would need alone."""
    kept = [
        (trip, ideal)
        for trip, ideal in zip(record.measured, limits.l1_ms, strict=False)
        if trip.call.patience_ms == math.inf
    ]
    return [trip for trip, _ in kept], [ideal for _, ideal in kept]


def _starved(trips: Sequence[Trip], alone: Sequence[float]) -> int:
    return sum(
        trip.ttft_ms - ideal > max(STARVED_FACTOR * ideal, STARVED_MS)
        for trip, ideal in zip(trips, alone, strict=False)
        if trip.fate in (Fate.SERVED, Fate.OPEN)
    )


def _adapter_wait(trip: Trip) -> float:
    """What a request waited for its adapter: in the queue while all slots were taken, and for its load."""
    sequence = trip.sequence
    if sequence is None or not (sequence.deferred or sequence.loaded):
        return 0.0
    load = 0.0
    if sequence.loaded:
        load = sequence.first_token - sequence.admitted
    return load + (sequence.admitted - sequence.arrived if sequence.deferred else 0.0)


def _split(trips: Sequence[Trip], key: Any) -> dict[str, dict[str, float]]:
    groups: dict[str, list[Trip]] = defaultdict(list)
    for trip in trips:
        if key(trip):
            groups[key(trip)].append(trip)
    return {
        name: {
            "ttft_p99_ms": quantile([trip.ttft_ms for trip in group], 0.99),
            "e2e_p99_ms": quantile([trip.e2e_ms for trip in group], 0.99),
        }
        for name, group in sorted(groups.items())
    }


def fairness_gap(trips: Sequence[Trip], every_ms: float = 1_000.0) -> float:
    """Largest difference in service, tokens, that two tenants got while both had requests waiting all the time.

    Service is counted at the first token (the prompt) and at the end (twice the answer). 0 with less than two tenants.
    """
    tenants = sorted({trip.call.tenant for trip in trips if trip.call.tenant})
    if len(tenants) < 2:
        return 0.0
    index = {tenant: position for position, tenant in enumerate(tenants)}
    served: list[tuple[float, int, float]] = []
    waiting: list[tuple[float, int, int]] = []
    for trip in trips:
        if not trip.call.tenant:
            continue
        tenant = index[trip.call.tenant]
        waiting += [(trip.arrived_ms, tenant, 1), (trip.first_ms, tenant, -1)]
        served.append((trip.first_ms, tenant, PROMPT_WEIGHT * trip.call.prompt_tokens))
        served.append((trip.end_ms, tenant, OUTPUT_WEIGHT * trip.call.output_tokens))
    waiting.sort()
    served.sort()
    end = max((trip.arrived_ms for trip in trips), default=0.0)
    now = min(trip.arrived_ms for trip in trips)
    total = [0.0] * len(tenants)
    queued = [0] * len(tenants)
    idle_since = [True] * len(tenants)
    start: dict[tuple[int, int], float] = {}
    gap, next_wait, next_served = 0.0, 0, 0
    while now < end:
        now += every_ms
        while next_served < len(served) and served[next_served][0] <= now:
            total[served[next_served][1]] += served[next_served][2]
            next_served += 1
        for position in range(len(tenants)):
            idle_since[position] = queued[position] == 0
        while next_wait < len(waiting) and waiting[next_wait][0] <= now:
            _, tenant, change = waiting[next_wait]
            queued[tenant] += change
            if queued[tenant] == 0:
                idle_since[tenant] = True
            next_wait += 1
        busy = [position for position in range(len(tenants)) if queued[position] and not idle_since[position]]
        pairs = {(one, two) for number, one in enumerate(busy) for two in busy[number + 1 :]}
        for pair in [pair for pair in start if pair not in pairs]:
            del start[pair]
        for one, two in pairs:
            difference = total[one] - total[two]
            gap = max(gap, abs(difference - start.setdefault((one, two), difference)))
    return gap
