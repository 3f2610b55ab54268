"""SMG cache_aware with its spill gate: the best match unless it is far above the fleet's mean load."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView

MATCH: Final = 0.3


class SmgCacheAware(Stateless):
    """Leaves the match when load > 1.5 × mean and > mean + min(64, max(4, ⌈2·√mean⌉)); loads are in-flight counts."""

    def decide(self, view: DecisionView) -> list[int]:
        """Match or least loaded."""
        requests, cached = view.table.requests, view.cached_tokens
        best = float(cached[view.mask].max())
        if best > MATCH * view.request.prompt_tokens:
            match = lowest(view, np.where(cached >= best - 1e-9, requests, np.inf))
            mean = float(requests[view.mask].mean())
            gate = mean + min(64.0, max(4.0, math.ceil(2.0 * math.sqrt(mean))))
            load = float(requests[match[0]])
            if not (load > 1.5 * mean and load > gate):
                return match
        return lowest(view, requests)


BASELINE = Baseline(
    name="smg-cache-aware",
    source="smg 1.13.0 cache_aware with spill gate",
    build=lambda _: SmgCacheAware(),
)
