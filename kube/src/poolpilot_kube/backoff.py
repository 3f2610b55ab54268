"""How long to wait before asking again, so that many clients do not ask at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


class Backoff:
    """Doubles from `first_s` to `most_s` with each failure; half of it is left to chance."""

    def __init__(self, rng: random.Random, first_s: float = 0.2, most_s: float = 30.0) -> None:
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def after_failure(self, wanted_s: float | None = None) -> float:
        """Seconds to wait; at least what the server wants (Retry-After), then spread behind it."""
        wait = self._next_s * (0.5 + 0.5 * self._rng.random())
        self._next_s = min(2.0 * self._next_s, self._most_s)
        return wait if wanted_s is None else wanted_s + wait

    def reset(self) -> None:
        """It worked."""
        self._next_s = self._first_s
