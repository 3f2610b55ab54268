"""Predicted latency as llm-d published it: per-request TTFT and TPOT learned online, lowest blend, affinity gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from poolpilot_lab.sim.baselines.base import Baseline, lowest, or_nothing

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats, Mask

WINDOW: Final = 1_000
"""Newest samples that a fit uses."""
EVERY: Final = 25
"""Samples between two fits."""
FIRST: Final = 50
"""Samples before the first fit; until then the fewest requests decide."""
TTFT_WEIGHT: Final = 0.8
AFFINITY: Final = 0.8
PENALTY_MS: Final = 5_000.0
"""Predicted TTFT that affinity may cost."""
EXPLORE: Final = 0.01


class _Regression:
    """Least squares over a window, fitted now and then; not negative."""

    def __init__(self, features: int) -> None:
        # Twice the window: the newest samples are always rows one behind the other.
        self._rows: Floats = np.empty((2 * WINDOW, features))
        self._values: Floats = np.empty(2 * WINDOW)
        self._end = 0
        self._weights: Floats | None = None
        self._new = 0

    def learn(self, features: Floats, value: float) -> None:
        """One more sample."""
        if self._end == 2 * WINDOW:
            self._rows[:WINDOW], self._values[:WINDOW] = self._rows[WINDOW:], self._values[WINDOW:]
            self._end = WINDOW
        self._rows[self._end], self._values[self._end] = features, value
        self._end += 1
        self._new += 1
        if self._new >= EVERY and self._end >= FIRST:
            self._new = 0
            newest = slice(max(0, self._end - WINDOW), self._end)
            rows = self._rows[newest]
            # Relative errors, as a percentage error is what their model is judged by.
            values = np.maximum(self._values[newest], 1.0)
            scaled = rows / values[:, None]
            ridge = 1e-6 * np.eye(rows.shape[1]) * float((scaled * scaled).sum(axis=0).max())
            self._weights = np.linalg.solve(scaled.T @ scaled + ridge, scaled.sum(axis=0))

    def predict(self, features: Floats) -> Floats | None:
        """By row; None before the first fit."""
        if self._weights is None:
            return None
        predicted: Floats = np.maximum(features @ self._weights, 0.0)
        return predicted


class PredictedLatency:
    """One model for all endpoints (their pools are homogeneous), features of llm-d's: KV use, prompt, queue, batch,
    prefix match, tokens in flight. A linear model with products instead of boosted trees.
    """

    def __init__(self) -> None:
        self._ttft, self._tpot = _Regression(9), _Regression(6)
        self._asked: dict[str, tuple[Floats, Floats]] = {}
        self._offered: tuple[Floats, Floats] | None = None

    def _features(self, view: DecisionView) -> tuple[Floats, Floats]:
        table, prompt = view.table, float(view.request.prompt_tokens)
        new = np.maximum(prompt - view.cached_tokens, 1.0) / 1_000.0
        running, pending = table.requests / 10.0, table.uncached_tokens / 1_000.0
        usage, waiting = or_nothing(table.kv_usage), table.queued
        ttft, tpot = np.empty((len(new), 9)), np.empty((len(new), 6))
        columns: tuple[Any, ...] = (
            1.0,
            new,
            new * new,
            new * running,
            pending,
            pending * running,
            waiting,
            running,
            usage,
        )
        for number, column in enumerate(columns):
            ttft[:, number] = column
        fewer: tuple[Any, ...] = (1.0, running, usage, pending, waiting, prompt / 1_000.0)
        for number, column in enumerate(fewer):
            tpot[:, number] = column
        return ttft, tpot

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest predicted blend among the warm endpoints, or among all."""
        self._offered = rows = self._features(view)
        ttft, tpot = self._ttft.predict(rows[0]), self._tpot.predict(rows[1])
        if ttft is None or tpot is None:
            return lowest(view, view.table.requests)
        if view.rng.random() < EXPLORE:
            return [view.rng.choice(view.mask.nonzero()[0].tolist())]
        allowed = view.mask
        warm = allowed & (view.cached_tokens >= AFFINITY * view.request.prompt_tokens)
        if warm.any() and float(ttft[warm].min()) <= float(ttft[allowed].min()) + PENALTY_MS:
            allowed = warm
        blend: Floats = TTFT_WEIGHT * _scaled(ttft, allowed) + (1.0 - TTFT_WEIGHT) * _scaled(tpot, allowed)
        return lowest(view, np.where(allowed, blend, np.inf))

    def placed(self, view: DecisionView, slot: int) -> None:
        """Keeps the features until the answer tells."""
        assert self._offered is not None
        self._asked[view.request.request_id] = (self._offered[0][slot], self._offered[1][slot])

    def first_token(self, request_id: str, ttft_ms: float) -> None:
        """The first token came."""
        asked = self._asked.get(request_id)
        if asked is not None:
            self._ttft.learn(asked[0], ttft_ms)

    def answered(self, request_id: str, tpot_ms: float) -> None:
        """The answer ended."""
        asked = self._asked.pop(request_id, None)
        if asked is not None and tpot_ms > 0.0:
            self._tpot.learn(asked[1], tpot_ms)


def _scaled(values: Floats, among: Mask) -> Floats:
    """0 for the lowest of the candidates, 1 for the highest."""
    low, high = float(values[among].min()), float(values[among].max())
    scaled: Floats = (values - low) / max(high - low, 1e-9)
    return scaled


BASELINE = Baseline(
    name="predicted-latency",
    source="llm-d / GIE predicted latency (blog 2026-03-13), with a linear model in place of XGBoost",
    build=lambda _: PredictedLatency(),
    first_tokens=True,
    scrape_ms=50.0,
)
