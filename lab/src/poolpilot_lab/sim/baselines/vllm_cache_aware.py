"""vLLM router cache_aware: the least loaded of the best matches, unless the fleet is imbalanced; else least loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest
from poolpilot_lab.sim.baselines.sglang_cache_aware import ABSOLUTE, MATCH, RELATIVE

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class VllmCacheAware(Stateless):
    """As SGLang's, but ties of the match and misses go by requests in flight."""

    def decide(self, view: DecisionView) -> list[int]:
        """Balance, match, or least loaded."""
        requests, cached = view.table.requests, view.cached_tokens
        loads = requests[view.mask]
        most, least = float(loads.max()), float(loads.min())
        best = float(cached[view.mask].max())
        if not (most - least > ABSOLUTE and most > RELATIVE * least) and best > MATCH * view.request.prompt_tokens:
            return lowest(view, np.where(cached >= best - 1e-9, requests, np.inf))
        return lowest(view, requests)


BASELINE = Baseline(
    name="vllm-cache-aware",
    source="vllm-router 0.1.17 cache_aware (its default policy), defaults (0.3, 64, 1.5)",
    build=lambda _: VllmCacheAware(),
)
