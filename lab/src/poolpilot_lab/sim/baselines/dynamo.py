"""NVIDIA Dynamo's KV router: prefill blocks still to compute plus decode blocks held, lowest sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class Dynamo(Stateless):
    """cost = (active prefill + prompt − overlap) + active blocks, in tokens; defaults of 1.6: all weights 1, argmin.

    Shared blocks count once, as in the real tracker: an active request counts its uncached prompt tokens.
    """

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest cost."""
        table, prompt = view.table, view.request.prompt_tokens
        new = np.maximum(prompt - view.cached_tokens, 0.0)
        return lowest(view, table.uncached_tokens + new + table.new_kv_tokens + new)


BASELINE = Baseline(
    name="dynamo",
    source="ai-dynamo 1.6.1 lib/kv-router default selector, approximate mode (own decisions, no KV events)",
    build=lambda _: Dynamo(),
    first_tokens=True,
)
