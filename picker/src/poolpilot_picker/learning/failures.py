"""How often an endpoint failed lately: a penalty, so that a pod that fails fast does not attract everything."""

from __future__ import annotations

import math
from typing import Final

PENALTY_MS: Final = 1_000.0
"""Cost of one recent failure."""
MOST: Final = 20.0
HALF_LIFE_MS: Final = 5_000.0
"""Without traffic a penalty halves in this time: an endpoint that recovered is tried again."""


class Failures:
    """One endpoint's recent failures: one more per failure, half per success, half per half-life."""

    __slots__ = ("_at_ms", "_count")

    def __init__(self) -> None:
        self._count = 0.0
        self._at_ms = 0.0

    def _decayed(self, now: float) -> float:
        return self._count * math.exp2(min(0.0, self._at_ms - now) / HALF_LIFE_MS)

    def failed(self, now: float) -> None:
        """A connection failed or was reset, or the pod answered 5xx."""
        self._count = min(MOST, self._decayed(now) + 1.0)
        self._at_ms = now

    def succeeded(self, now: float) -> None:
        """The pod answered."""
        self._count = 0.5 * self._decayed(now)
        self._at_ms = now
        if self._count < 0.01:
            self._count = 0.0

    def penalty_ms(self, now: float) -> float:
        """What a placement costs more now."""
        return PENALTY_MS * self._decayed(now) if self._count else 0.0
