"""How much slower or faster an endpoint is than its profile: residuals from the engine's own histograms, per window.

Completion times alone teach nonsense (they mix length, later load and speed), so the engine's mean inter-token time is
compared with the mean predicted step time over the same window, and its mean TTFT with the mean TTFT predicted for what
was placed in it. Prefill and decode are learned apart. What an endpoint has not shown yet is taken from its peers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from poolpilot_picker import compiled

if TYPE_CHECKING:
    from poolpilot_picker.config.step_models import StepModel

WINDOW_MS: Final = 4_500.0
"""Histograms are read about every 5 s; a reading that comes a little early still ends a window."""
GAIN: Final = 0.45
"""Share of the log-error taken per window, twice that of an endpoint that has shown nothing; 0.15 is too slow, 1.0
oscillates."""
BOUNDS: Final = (0.25, 4.0)
TTFT_RATIO_BOUNDS: Final = (0.5, 2.0)
LEAST_TOKENS: Final = 50.0
HALF_TRUST_TOKENS: Final = 200.0
HALF_TRUST_REQUESTS: Final = 5.0
SOFT_BAND: Final = 0.04
"""Log-residuals within this of the peers' are noise: they shrink to it."""
MAX_PREFILL_SHARE: Final = 0.7
SHARE_SMOOTHING: Final = 0.3
LOAD_MS: Final = 500.0
"""Assumed length of an adapter load where no prediction says."""
MOST_LOADING: Final = 0.25
"""A window with so much of its time in adapter loads teaches nothing; with less, proportionally less."""
FADE: Final = 0.9
"""Share of what was learned that is left after a window that gave nothing to learn: half in about 30 s."""


def _clamp(value: float, low: float, high: float) -> float:
    return min(high, max(low, value))


class Residual:
    """A factor on predicted times, learned as a logarithm, and how much of it was learned.

    `log` starts at 0 with `evidence` 0; each lesson takes a share of both the way to its value and to 1. So `log` is
    `evidence` × the mean lesson, and what is missing to 1 is left to the peers.
    """

    __slots__ = ("evidence", "log")

    def __init__(self) -> None:
        self.log = 0.0
        self.evidence = 0.0

    def learn(self, factor: float, gain: float) -> None:
        """One lesson, 0 ≤ gain ≤ 1. The first ones are worth more: what they correct is a guess, not noise."""
        gain = min(1.0, gain * (2.0 - self.evidence))
        self.log += gain * (math.log(factor) - self.log)
        self.evidence += gain * (1.0 - self.evidence)

    def fade(self) -> None:
        """Nothing was learned lately: an endpoint that is avoided for what it was once is tried again."""
        self.log *= FADE
        self.evidence *= FADE

    def factor(self, peers: Residual) -> float:
        """Best guess: own lessons, and the peers' for what they leave open. Within SOFT_BAND of theirs: theirs."""
        common = peers.log / peers.evidence if peers.evidence > 0.0 else 0.0
        apart = self.log - self.evidence * common
        return math.exp(common + math.copysign(max(abs(apart) - SOFT_BAND, 0.0), apart))


class Clock(Protocol):
    """An endpoint's predicted step time, summed over the running window."""

    since_ms: float
    """When the window began; inf: it has not yet."""
    at_ms: float
    """Until when it is accounted for."""
    step_sum: float
    """Step times in ms, each times its weight."""
    step_weight: float
    """Sequences times milliseconds."""

    def advance(self, now: float, sequences: float, context_tokens: float) -> None:
        """Accounts for the time since the last call, during which this many sequences were here."""
        ...

    def restart(self, now: float) -> None:
        """A new window begins."""
        ...


class ReferenceClock:
    """The clock in Python; `compiled/_columns.pyx` does the same."""

    __slots__ = ("_model", "at_ms", "since_ms", "step_sum", "step_weight")

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self.since_ms = math.inf
        self.at_ms = self.step_sum = self.step_weight = 0.0

    def restart(self, now: float) -> None:
        """As `Clock.restart`."""
        self.since_ms = self.at_ms = now
        self.step_sum = self.step_weight = 0.0

    def advance(self, now: float, sequences: float, context_tokens: float) -> None:
        """As `Clock.advance`."""
        elapsed = now - self.at_ms
        self.at_ms = now
        if self.since_ms == math.inf:
            self.since_ms = now
        elif elapsed > 0 and sequences > 0:
            weight = elapsed * sequences
            self.step_sum += weight * self._model.step(min(sequences, self._model.max_sequences), context_tokens)
            self.step_weight += weight


class SpeedLearner:
    """One endpoint's residuals. They multiply the profile's times (> 1: slower than the profile)."""

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self.prefill = Residual()
        self.decode = Residual()
        self.prefill_share = 0.0
        self.lessons = 0
        """Windows that taught something, of prefill and of decode."""
        self.window = 0
        """Number of the running window: what a placement keeps, to be withdrawn from it and no other."""
        core = compiled.in_force
        self.clock: Clock = ReferenceClock(model) if core is None else core.clock(model)
        """To be told, before the account of the endpoint changes, what ran there until then."""
        self._clear()

    def _clear(self) -> None:
        self._work_ms = self._ttft_sum = 0.0
        self._ttft_count = 0
        self._loading_ms = self._stalled_ms = 0.0

    def placed(self, work_ms: float, ttft_ms: float, forecasts: int = 1) -> int:
        """A request was placed here: its prefill work by the profile, and the TTFT that was predicted for it (0: none
        was). Returns the window it counts in. Of several requests: the sums, and how many TTFTs were predicted."""
        self._work_ms += work_ms
        if ttft_ms > 0:
            self._ttft_sum += ttft_ms
            self._ttft_count += forecasts
        return self.window

    def loading(self, load_ms: float, sequences: float) -> None:
        """An adapter must be loaded here first, which stalls the whole batch of `sequences`."""
        self._loading_ms += load_ms
        self._stalled_ms += load_ms * sequences

    def withdrawn(self, window: int, work_ms: float, ttft_ms: float) -> None:
        """A request placed in `window` was not answered by the engine (local reply, failed connection, abort): what was
        predicted for it is compared with nothing."""
        if window != self.window:
            return
        self._work_ms = max(0.0, self._work_ms - work_ms)
        if ttft_ms > 0:
            self._ttft_sum -= ttft_ms
            self._ttft_count -= 1

    def window_at(self, placed_ms: float) -> int:
        """Number of the window that a placement of that time counts in; one that is over has number −1."""
        since = self.clock.since_ms
        return self.window if since == math.inf or placed_ms >= since else -1

    def due(self, now: float) -> bool:
        """True once the window is long enough to be closed."""
        return now - self.clock.since_ms >= WINDOW_MS

    def close_window(
        self, now: float, *, inter_token_s: float, tokens: float, ttft_s: float, first_tokens: float, prefill: float
    ) -> None:
        """Learns from one window: sums (seconds) and counts that the engine's histograms grew by; `prefill`: the
        residual with which TTFTs were predicted in it.

        Adapter loads stall the whole batch: their time is taken out, and the more there was of it the less is learned.
        """
        since = self.clock.since_ms
        elapsed = max(1.0, now - since) if since != math.inf else WINDOW_MS
        share = prefill * self._work_ms / elapsed
        self.prefill_share += SHARE_SMOOTHING * (min(share, MAX_PREFILL_SHARE) - self.prefill_share)
        clean = GAIN * max(0.0, 1.0 - self._loading_ms / (MOST_LOADING * elapsed))
        self._learn_decode(clean, 1000.0 * inter_token_s, tokens)
        self._learn_prefill(clean, 1000.0 * ttft_s, first_tokens, prefill)
        self.restart_window(now)

    def _learn_decode(self, gain: float, inter_token_ms: float, tokens: float) -> None:
        readable = LEAST_TOKENS < tokens < math.inf and 0.0 < inter_token_ms < math.inf
        if gain <= 0.0 or not readable or self.clock.step_weight <= 0.0:
            self.decode.fade()
            return
        decoding = max(inter_token_ms - self._stalled_ms, BOUNDS[0] * inter_token_ms)
        observed = decoding / tokens * (1.0 - self.prefill_share)
        factor = _clamp(observed / (self.clock.step_sum / self.clock.step_weight), *BOUNDS)
        self.decode.learn(factor, gain * tokens / (tokens + HALF_TRUST_TOKENS))
        self.lessons += 1

    def _learn_prefill(self, gain: float, ttft_ms: float, first_tokens: float, prefill: float) -> None:
        readable = 1.0 <= first_tokens < math.inf and 0.0 < ttft_ms < math.inf
        if gain <= 0.0 or not readable or not self._ttft_count:
            self.prefill.fade()
            return
        predicted = max(1e-3, self._ttft_sum / self._ttft_count)
        ratio = _clamp(ttft_ms / first_tokens / predicted, *TTFT_RATIO_BOUNDS)
        factor = _clamp(prefill * ratio, *BOUNDS)
        self.prefill.learn(factor, gain * first_tokens / (first_tokens + HALF_TRUST_REQUESTS))
        self.lessons += 1

    def restart_window(self, now: float) -> None:
        """Forgets the running window: after an engine restart its counters mean something else."""
        self.clock.restart(now)
        self.window += 1
        self._clear()
