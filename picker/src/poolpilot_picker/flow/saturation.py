"""How saturated a pool is, and who may still be dispatched then: detectors and ceilings of llm-d by name and formula.

Used where a configuration names them: late binding (`flow.room`) bounds every endpoint by itself, with or without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_picker.config.flow_plugins import HoldbackParameters, ReflectiveParameters, StaticLimitParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.config.flow_plugins import CeilingParameters
    from poolpilot_picker.flow.pool import Pool
    from poolpilot_picker.flow.room import Room
    from poolpilot_picker.routing.plugins.limits import ConcurrencyDetectorParameters, UtilizationDetectorParameters


class OwnDetector:
    """How full the bounds of late binding are: where the configuration names no detector."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def __call__(self, pool: Pool, now: float) -> float:
        """0 to 1."""
        return self._room.saturation(pool.table, now, pool.settings.stale_after_ms)


class UtilizationDetector:
    """utilization-detector: mean of max(waiting ÷ threshold, KV use ÷ threshold); 1 where unknown, and of no endpoints.

    Unlike in llm-d an endpoint that is not heard from counts as 0 while we have nothing in flight there: a pool whose
    telemetry is gone would else never serve again.
    """

    def __init__(self, parameters: UtilizationDetectorParameters) -> None:
        self._parameters = parameters

    def __call__(self, pool: Pool, now: float) -> float:
        """0 and more."""
        table, parameters = pool.table, self._parameters
        mask = table.eligible
        stale = now - table.load_ms > pool.settings.stale_after_ms
        unknown = stale | (np.isnan(table.waiting) & np.isnan(table.kv_usage))
        if parameters.staleness_policy == "ignore":
            mask = mask & ~unknown
        if not mask.any():
            return 1.0
        queue = np.nan_to_num(table.waiting) / parameters.queue_depth_threshold
        cache = np.nan_to_num(table.kv_usage) / parameters.kv_cache_util_threshold
        used = np.where(unknown, (table.requests > 0.0).astype(np.float64), np.maximum(queue, cache))
        return float(used[mask].mean())


class ConcurrencyDetector:
    """concurrency-detector: in flight ÷ capacity, over the whole pool; hybrid: mean of each endpoint's larger share."""

    def __init__(self, parameters: ConcurrencyDetectorParameters) -> None:
        self._parameters = parameters

    def __call__(self, pool: Pool, now: float) -> float:
        """0 and more."""
        table, parameters = pool.table, self._parameters
        mask = table.eligible
        if not mask.any():
            return 1.0
        requests = table.requests[mask] / parameters.max_concurrency
        tokens = table.uncached_tokens[mask] / parameters.max_token_concurrency
        match parameters.concurrency_mode:
            case "requests":
                return float(requests.mean())
            case "tokens":
                return float(tokens.mean())
            case "hybrid":
                return float(np.maximum(requests, tokens).mean())


# ---- ceilings


def ceiling_of(parameters: CeilingParameters, index: int, count: int, share: float, saturation: float) -> float:
    """Below it a priority is dispatched. `index`: its rank among `count`, 0 the highest; `share`: where it lies between
    the lowest (0) and the highest (1)."""
    if isinstance(parameters, StaticLimitParameters):
        return parameters.threshold
    if isinstance(parameters, HoldbackParameters):
        if count < 2:
            return parameters.max_ceiling
        height = 1.0 - index / (count - 1) if parameters.domain == "rank" else share
        return parameters.min_ceiling + height * (parameters.max_ceiling - parameters.min_ceiling)
    return 1.0 if count < 2 else 1.0 - index * saturation / (count - 1)


MOST_PERIOD: Final = 10_000


class Gate:
    """May requests of a priority be dispatched, at the saturation of this moment?"""

    def __init__(self, detector: Callable[[Pool, float], float], ceiling: CeilingParameters) -> None:
        self._detector = detector
        self._ceiling = ceiling
        self._held: dict[int, int] = {}
        """Times that a priority was held since one of it passed all the same."""

    def saturation(self, pool: Pool, now: float) -> float:
        """0 = idle, 1 = saturated."""
        return self._detector(pool, now)

    def open(self, priority: int, priorities: list[int], saturation: float) -> bool:
        """`priorities`: of all bands, highest first."""
        index, count = priorities.index(priority), len(priorities)
        span = priorities[0] - priorities[-1]
        share = (priority - priorities[-1]) / span if span else 1.0
        if saturation < ceiling_of(self._ceiling, index, count, share, saturation):
            self._held.pop(priority, None)
            return True
        if not isinstance(self._ceiling, ReflectiveParameters) or saturation >= 1.0:
            return False
        # One of every round(saturation ÷ (1 − saturation)) is let through.
        held = self._held.get(priority, 0) + 1
        period = max(1, min(MOST_PERIOD, round(saturation / (1.0 - saturation))))
        self._held[priority] = 0 if held >= period else held
        return held >= period
