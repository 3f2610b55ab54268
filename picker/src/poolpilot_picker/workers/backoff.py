"""How long a worker that ended stays away before it is started again."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.1
MOST_S: Final = 10.0
SETTLED_S: Final = 60.0
"""A worker that served so long did not end because of how it starts."""


class Backoff:
    """Doubles from FIRST_S to MOST_S, and begins again after a life of SETTLED_S."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, served_s: float) -> float:
        """Seconds to wait after a life in which the worker was ready for `served_s`."""
        if served_s >= SETTLED_S:
            self._next_s = FIRST_S
        wait, self._next_s = self._next_s, min(2.0 * self._next_s, MOST_S)
        return wait
