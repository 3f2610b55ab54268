"""The pace at which a pool takes work: what was dispatched lately, per millisecond. Of it, waits are predicted."""

from __future__ import annotations

import math
from typing import Final

WINDOW_MS: Final = 10_000.0
"""Time constant: older dispatches count less and less."""


class Throughput:
    """An exponentially weighted rate of cost, that is right from the first second on."""

    __slots__ = ("_at_ms", "_began_ms", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_ms = self._began_ms = -math.inf

    def add(self, cost: float, now: float) -> None:
        """So much was dispatched."""
        if self._began_ms == -math.inf or now - self._at_ms > 10.0 * WINDOW_MS:
            self._began_ms = now
            self._sum = 0.0
            self._at_ms = now
        self._sum = self._sum * math.exp((self._at_ms - now) / WINDOW_MS) + cost
        self._at_ms = now

    def per_ms(self, now: float) -> float:
        """Cost per ms; 0 where nothing is known."""
        if self._began_ms == -math.inf:
            return 0.0
        seen = max(1_000.0, now - self._began_ms)
        whole = WINDOW_MS * -math.expm1(-seen / WINDOW_MS)
        return self._sum * math.exp((self._at_ms - now) / WINDOW_MS) / whole
