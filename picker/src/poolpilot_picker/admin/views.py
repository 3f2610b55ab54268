"""What admin shows of a pool: readiness with its reasons, and one row per endpoint. Pure reads of live state."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.state.load import LoadEstimate

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Pool


SLICE: Final = 50
"""Rows made at a time: about a millisecond."""


class Readiness(msgspec.Struct):
    """May requests be sent here? `detail` says why not, or what a person should look at although they may."""

    ready: bool
    alive: bool = True
    """False when only a restart can help."""
    detail: dict[str, str] = {}
    pools: dict[str, bool] = {}


class EndpointRow(msgspec.Struct):
    """One endpoint as the next decision would see it."""

    endpoint: str
    name: str
    engine: str
    draining: bool
    in_flight: float
    foreign: float
    running: float | None
    waiting: float | None
    kv_usage: float | None
    kv_capacity_tokens: float | None
    prefill_queue_ms: float
    indexed_tokens: float
    telemetry_age_ms: float | None
    prefill_speed: float
    decode_speed: float
    prefill_share: float
    cache_trust: float
    failure_penalty_ms: float
    ejected: str
    """`ejected` while it is left out, `on trial` while it gets a request now and then."""
    preempting: bool
    adapters_resident: list[str]
    models_served: list[str] | None


def _known(value: float) -> float | None:
    return round(float(value), 4) if math.isfinite(value) else None


async def endpoint_rows(pool: Pool, now: float) -> list[EndpointRow]:
    """Rows in slot order. Requests go first: after every SLICE rows they get their turn."""
    table = pool.table
    load = LoadEstimate(table, now, pool.settings.stale_after_ms, expected=True)
    indexed = pool.prefixes.tokens().copy()
    rows: list[EndpointRow] = []
    for position, endpoint in enumerate(list(table), 1):
        if position % SLICE == 0:
            await asyncio.sleep(0)
        slot = endpoint.slot
        if not table.holds(endpoint):
            continue  # gone meanwhile
        served = pool.adapters.served(slot)
        rows.append(
            EndpointRow(
                endpoint=endpoint.address,
                name=endpoint.spec.name,
                engine=endpoint.spec.engine,
                draining=endpoint.draining,
                in_flight=float(table.account.requests[slot]),
                foreign=float(load.foreign[slot]),
                running=_known(table.running[slot]),
                waiting=_known(table.waiting[slot]),
                kv_usage=_known(table.kv_usage[slot]),
                kv_capacity_tokens=_known(table.kv_capacity[slot]),
                prefill_queue_ms=round(max(0.0, float(table.free_at_ms[slot]) - now), 3),
                indexed_tokens=round(float(indexed[slot]), 1),
                telemetry_age_ms=_known(now - table.sample_ms[slot]),
                prefill_speed=round(float(table.prefill_speed[slot]), 4),
                decode_speed=round(float(table.decode_speed[slot]), 4),
                prefill_share=round(float(table.prefill_share[slot]), 4),
                cache_trust=round(float(table.cache_trust[slot]), 4),
                failure_penalty_ms=round(float(table.failure_ms[slot]), 3),
                ejected=pool.ejector.standing(endpoint),
                preempting=bool(table.preempting_until_ms[slot] > now),
                adapters_resident=list(pool.adapters.resident(slot)),
                models_served=None if served is None else [*served.base, *served.adapters],
            )
        )
    return rows
