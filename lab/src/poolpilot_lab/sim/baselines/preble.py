"""Preble's E2: exploit the longest match when more is cached than not, else explore by windowed load."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, lowest

if TYPE_CHECKING:
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats

WINDOW_MS: Final = 180_000.0
IMBALANCE: Final = 2.0
"""Load of the warm endpoint over the lightest one's from where on its traffic is shifted: our choice."""


class Preble:
    """Load of an endpoint: time of the prefills and decodes placed there within three minutes.

    Explore: least of load + eviction (recompute time of what falls out, weighted by how often prefixes are hit) + the
    prompt's missed prefill time. Rebalancing sends a request of a warm endpoint with twice the load of the lightest one
    there. The prefix queue inside the engine is not part of a router and left out.
    """

    def __init__(self, token_ms: float, decode_ms: float) -> None:
        self._token_ms, self._decode_ms = token_ms, decode_ms
        self._window: deque[tuple[float, int, float]] = deque()
        self._load: Floats = np.zeros(0)

    def _loads(self, view: DecisionView) -> Floats:
        slots = len(view.mask)
        if len(self._load) != slots:
            self._load = np.resize(np.append(self._load, np.zeros(slots)), slots)
        while self._window and self._window[0][0] < view.now - WINDOW_MS:
            _, slot, cost = self._window.popleft()
            if slot < slots:
                self._load[slot] -= cost
        return self._load

    def decide(self, view: DecisionView) -> list[int]:
        """Longest match or least cost."""
        loads, cached, prompt = self._loads(view), view.cached_tokens, float(view.request.prompt_tokens)
        lightest = float(loads[view.mask].min())
        best = float(cached[view.mask].max())
        if best > prompt - best:
            warm = lowest(view, np.where(cached >= best - 1e-9, loads, np.inf))
            if loads[warm[0]] <= IMBALANCE * lightest + self._token_ms * prompt:
                return warm
        new = np.maximum(prompt - cached, 1.0)
        full = view.indexed_tokens + new > 0.95 * view.table.kv_tokens
        evicted = np.where(full, self._token_ms * new * view.hit_share, 0.0)
        return lowest(view, loads + evicted + self._token_ms * new)

    def placed(self, view: DecisionView, slot: int) -> None:
        """Adds to the window."""
        new = max(1.0, view.request.prompt_tokens - float(view.cached_tokens[slot]))
        cost = self._token_ms * new + self._decode_ms * view.expected_output
        self._window.append((view.now, slot, cost))
        self._load[slot] += cost


def _build(world: World) -> Preble:
    profile = world.fleet[0]
    # A decode's share of a step, at a batch of 32.
    share = (profile.decode_a_ms + profile.step_overhead_ms) / 32 + profile.decode_b_ms + profile.sequence_overhead_ms
    return Preble(profile.prefill_b_ms, share)


BASELINE = Baseline(name="preble", source="Preble, ICLR '25, E2; weights by the published profile", build=_build)
