"""Mooncake's conductor: smallest estimated TTFT = queued prefill time + own prefill time; decodes do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest

if TYPE_CHECKING:
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.routing.view import DecisionView


class Mooncake(Stateless):
    """Prefill times by a polynomial fitted offline (here the published one of the first profile, not the hidden one).

    No transfer of remote prefixes, and no early rejection: a rejected request would count as infinitely late.
    """

    def __init__(self, token_ms: float, token2_ms: float) -> None:
        self._token_ms, self._token2_ms = token_ms, token2_ms

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest TTFT."""
        prompt = float(view.request.prompt_tokens)
        new = np.maximum(prompt - view.cached_tokens, 1.0)
        prefill = self._token_ms * new + self._token2_ms * new * (2.0 * prompt - new)
        return lowest(view, self._token_ms * view.table.uncached_tokens + prefill)


def _build(world: World) -> Mooncake:
    return Mooncake(world.fleet[0].prefill_b_ms, world.fleet[0].prefill_c_ms)


BASELINE = Baseline(
    name="mooncake", source="Mooncake, FAST '25, algorithm 1 without transfer", build=_build, first_tokens=True
)
