"""Whether predicted cache hits really happen: the engine's hit counter over what was predicted. Scales the bonus."""

from __future__ import annotations

from typing import Final

SMOOTHING: Final = 0.3
LEAST_TOKENS: Final = 2_000.0
"""Windows are joined until this many hits were predicted: fewer say nothing."""


class CacheTrust:
    """One endpoint's observed over predicted prefix hits, 0..1. Starts at 1."""

    __slots__ = ("_observed", "_predicted", "trust")

    def __init__(self) -> None:
        self.trust = 1.0
        self._predicted = 0.0
        self._observed = 0.0

    def placed(self, predicted_hit_tokens: float) -> None:
        """A request was placed here that should find this many tokens, before trust is applied."""
        self._predicted += predicted_hit_tokens

    def withdrawn(self, predicted_hit_tokens: float) -> None:
        """A placed request never reached the engine: it looks for nothing there."""
        self._predicted = max(0.0, self._predicted - predicted_hit_tokens)

    def close_window(self, hit_tokens: float) -> None:
        """The engine's hit counter grew by this much in the window."""
        self._observed += hit_tokens
        if self._predicted >= LEAST_TOKENS:
            self.trust += SMOOTHING * (min(1.0, self._observed / self._predicted) - self.trust)
            self.restart()

    def restart(self) -> None:
        """The engine restarted: its counters begin again."""
        self._predicted = self._observed = 0.0
