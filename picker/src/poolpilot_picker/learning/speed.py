"""How much slower or faster an endpoint is than its profile: residuals from the engine's own histograms, per window.

Completion times alone teach nonsense (they mix length, later load and speed), so the engine's mean inter-token time is
compared with the mean predicted step time over the same window, and its mean TTFT with the mean TTFT predicted for what was
placed in it. Prefill and decode are learned apart.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from poolpilot_picker.config.step_models import StepModel

WINDOW_MS: Final = 5_000.0
GAIN: Final = 0.45
"""Share of the log-error taken per window; 0.15 is too slow, 1.0 oscillates."""
BOUNDS: Final = (0.25, 4.0)
HALF_TRUST_TOKENS: Final = 200.0
HALF_TRUST_REQUESTS: Final = 5.0
SOFT_BAND: Final = 0.07
"""Log-residuals within this of the fleet's median are noise: they shrink to it."""
MAX_PREFILL_SHARE: Final = 0.7
SHARE_SMOOTHING: Final = 0.3


def _clamp(value: float, low: float, high: float) -> float:
    return min(high, max(low, value))


class SpeedLearner:
    """One endpoint's residuals. `prefill` and `decode` multiply the profile's times (> 1: slower than the profile)."""

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self.prefill = 1.0
        self.decode = 1.0
        self.prefill_share = 0.0
        self.windows = 0
        """Windows that taught something."""
        self._since_ms: float | None = None
        self._at_ms: float | None = None
        self._step_sum = 0.0
        self._step_weight = 0.0
        self._busy_ms = 0.0
        self._work_ms = 0.0
        self._ttft_sum = 0.0
        self._ttft_count = 0
        self._cold_loads = 0

    def advance(self, now: float, sequences: float, context_tokens: float) -> None:
        """Accounts for the time since the last call, during which this many sequences were here."""
        if self._since_ms is None:
            self._since_ms = now
        elapsed = 0.0 if self._at_ms is None else now - self._at_ms
        self._at_ms = now
        if elapsed <= 0 or sequences <= 0:
            return
        decoding = min(sequences, float(self.model.max_sequences))
        weight = elapsed * sequences
        self._step_sum += self.model.step(decoding, context_tokens) * weight
        self._step_weight += weight
        self._busy_ms += elapsed

    def placed(self, uncached: float, cached: float, ttft_ms: float, *, cold_adapter: bool) -> None:
        """A request was placed here; `ttft_ms` is what was predicted for it."""
        self._work_ms += self.model.prefill(uncached, cached)
        self._ttft_sum += ttft_ms
        self._ttft_count += 1
        self._cold_loads += cold_adapter

    def withdrawn(self, ttft_ms: float) -> None:
        """A placed request never reached the engine (local reply, failed connection): it predicts nothing."""
        if self._ttft_count:
            self._ttft_sum -= ttft_ms
            self._ttft_count -= 1

    def due(self, now: float) -> bool:
        """True once the window is long enough to be closed."""
        return self._since_ms is not None and now - self._since_ms >= WINDOW_MS

    def close_window(
        self, now: float, *, inter_token_s: float, tokens: float, ttft_s: float, first_tokens: float
    ) -> bool:
        """Learns from one window: sums (seconds) and counts that the engine's histograms grew by. True if anything changed.

        A window with an adapter load in it teaches nothing: the load stalls the whole batch.
        """
        since = self._since_ms if self._since_ms is not None else now
        share = self.prefill * self._work_ms / max(1.0, now - since)
        self.prefill_share += SHARE_SMOOTHING * (min(share, MAX_PREFILL_SHARE) - self.prefill_share)
        changed = False
        if not self._cold_loads:
            if tokens > 50 and self._step_weight > 0:
                observed = 1000.0 * inter_token_s / tokens * (1.0 - self.prefill_share)
                ratio = _clamp(observed / (self._step_sum / self._step_weight), *BOUNDS)
                gain = GAIN * tokens / (tokens + HALF_TRUST_TOKENS)
                self.decode *= (ratio / self.decode) ** gain
                changed = True
            if first_tokens >= 1 and self._ttft_count > 0 and self._ttft_sum > 0:
                predicted = self._ttft_sum / self._ttft_count
                ratio = _clamp(1000.0 * ttft_s / first_tokens / predicted, 0.5, 2.0)
                gain = GAIN * first_tokens / (first_tokens + HALF_TRUST_REQUESTS)
                self.prefill = _clamp(self.prefill * ratio**gain, *BOUNDS)
                changed = True
        self.windows += changed
        self.restart_window(now)
        return changed

    def restart_window(self, now: float) -> None:
        """Forgets the running window: after an engine restart its counters mean something else."""
        self._since_ms = now
        self._step_sum = self._step_weight = self._busy_ms = self._work_ms = self._ttft_sum = 0.0
        self._ttft_count = self._cold_loads = 0


def soften(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shrinks log-residuals by SOFT_BAND towards the fleet's median, shape (endpoints,): identical hardware looks identical."""
    if len(residuals) < 2:
        return residuals
    median = float(np.median(residuals))
    logs = np.log(residuals / median)
    return median * np.exp(np.sign(logs) * np.maximum(np.abs(logs) - SOFT_BAND, 0.0))
