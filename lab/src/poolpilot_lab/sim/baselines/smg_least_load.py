"""SMG least_load: queued and running work in seconds, corrected by what was dispatched since the last report."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, lowest, or_nothing

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView

MEAN_TOKENS: Final = 1_024.0
THROUGHPUT: Final = 2_000.0
"""Nominal, tokens/s."""
KV_WEIGHT_S: Final = 0.15
TIE_S: Final = 1e-6


class SmgLeastLoad:
    """score = (queued·p̄ + running·p̄ + unaccounted·p̄ + dispatched since the report) ÷ throughput + λ·k/(1−k), seconds.

    unaccounted: in flight beyond what the report and the dispatches since explain. An endpoint that never reported
    counts as the best of those that did, plus its own; the whole fleet dark: fewest in flight.
    """

    def __init__(self) -> None:
        self._dispatched: dict[int, deque[tuple[float, float]]] = {}

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest score."""
        table = view.table
        known = view.mask & np.isfinite(table.load_ms)
        if not known.any():
            return lowest(view, table.requests)
        since_count, since_tokens = np.zeros(len(view.mask)), np.zeros(len(view.mask))
        for slot, dispatched in self._dispatched.items():
            while dispatched and dispatched[0][0] <= table.load_ms[slot]:
                dispatched.popleft()
            since_count[slot] = len(dispatched)
            since_tokens[slot] = sum(tokens for _, tokens in dispatched)
        running = or_nothing(table.running)
        unaccounted = np.maximum(table.requests - running - table.queued - since_count, 0.0)
        usage = np.minimum(or_nothing(table.kv_usage), 0.999)
        work = (table.queued + running + unaccounted) * MEAN_TOKENS + since_tokens
        score = work / THROUGHPUT + KV_WEIGHT_S * usage / (1.0 - usage)
        best = float(score[known].min())
        score = np.where(known, score, best + table.requests * MEAN_TOKENS / THROUGHPUT)
        return lowest(view, np.round(score / TIE_S))

    def placed(self, view: DecisionView, slot: int) -> None:
        """Remembers the dispatch until a report has seen it."""
        tokens = float(view.request.prompt_tokens)
        self._dispatched.setdefault(slot, deque()).append((view.now, tokens))


BASELINE = Baseline(
    name="smg-least-load",
    source="smg 1.13.0 least_load with its accounting; reports every 200 ms instead of its 10 s (in its favour)",
    build=lambda _: SmgLeastLoad(),
    scrape_ms=200.0,
)
