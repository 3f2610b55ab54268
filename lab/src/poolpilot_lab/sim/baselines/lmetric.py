"""LMetric: new prefill tokens times batch size; the product needs no weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class LMetric(Stateless):
    """(pending prefill tokens + uncached tokens of this prompt) × max(1, requests in flight)."""

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest product."""
        table = view.table
        new = np.maximum(view.request.prompt_tokens - view.cached_tokens, 1.0)
        return lowest(view, (table.uncached_tokens + new) * np.maximum(table.requests, 1.0))


BASELINE = Baseline(
    name="lmetric",
    source="LMetric, OSDI '26 (arXiv 2603.15202), with the queued prefill tokens of its reimplementation",
    build=lambda _: LMetric(),
    first_tokens=True,
)
