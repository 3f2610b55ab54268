"""SGLang router cache_aware: best match above half of the prompt whatever its load, unless the fleet is imbalanced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView

MATCH: Final = 0.3
ABSOLUTE: Final = 64.0
RELATIVE: Final = 1.5


class SglangCacheAware(Stateless):
    """No match: the endpoint with the smallest tree (memory, not load)."""

    def decide(self, view: DecisionView) -> list[int]:
        """Balance, match, or smallest tree."""
        requests = view.table.requests
        loads = requests[view.mask]
        most, least = float(loads.max()), float(loads.min())
        if most - least > ABSOLUTE and most > RELATIVE * least:
            return lowest(view, requests)
        best = float(view.cached_tokens[view.mask].max())
        if best > MATCH * view.request.prompt_tokens:
            return lowest(view, -view.cached_tokens)
        return lowest(view, np.asarray(view.indexed_tokens))


BASELINE = Baseline(
    name="sglang-cache-aware",
    source="sglang-router 0.3.2 cache_aware, defaults (0.3, 64, 1.5)",
    build=lambda _: SglangCacheAware(),
)
