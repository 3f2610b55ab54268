"""Least prefill work left: pending prefill tokens plus this prompt's uncached ones, ties by requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class Lpwl(Stateless):
    """Blind to decodes."""

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest work."""
        table = view.table
        new = np.maximum(view.request.prompt_tokens - view.cached_tokens, 1.0)
        return lowest(view, table.uncached_tokens + new + 1e-3 * table.requests)


BASELINE = Baseline(
    name="lpwl",
    source="agentic-kvc research log (unreviewed); the lookahead score of llm-d's token-load-scorer is the same",
    build=lambda _: Lpwl(),
    first_tokens=True,
)
