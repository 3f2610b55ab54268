"""Whether predicted cache hits really happen: the engine's hit counter over what was predicted. Scales the bonus, down to zero."""

from __future__ import annotations

from typing import Final

SMOOTHING: Final = 0.3
LEAST_TOKENS: Final = 2_000.0
"""A window with fewer predicted hits than this says nothing."""


class CacheTrust:
    """One endpoint's observed over predicted prefix hits, 0..1. Starts at 1."""

    def __init__(self) -> None:
        self.trust = 1.0
        self._predicted = 0.0

    def placed(self, predicted_hit_tokens: float) -> None:
        """A request was placed here that should find this many tokens, before trust is applied."""
        self._predicted += predicted_hit_tokens

    def close_window(self, hit_tokens: float) -> None:
        """The engine's hit counter grew by this much in the window."""
        if self._predicted >= LEAST_TOKENS:
            observed = min(1.0, hit_tokens / self._predicted)
            self.trust += SMOOTHING * (observed - self.trust)
            self._predicted = 0.0

    def restart(self) -> None:
        """The engine restarted: its counters begin again."""
        self._predicted = 0.0
