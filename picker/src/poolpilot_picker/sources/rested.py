"""Something that costs time each time it is done: done at once where it has rested, else as soon as it has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_REST: Final = 9.0
"""Between two times, in times of what one takes: requests get the other nine tenths."""
_MOST_REST_MS: Final = 500.0


class Rested:
    """Calls `act` when asked for, however often that is, in about a tenth of the time."""

    def __init__(self, act: Callable[[], None], now: Callable[[], float]) -> None:
        self._act = act
        self._now = now
        self._timer: asyncio.TimerHandle | None = None
        self._rested_ms = 0.0

    def at_once(self) -> None:
        """Does it now."""
        self.still()
        began_ms = self._now()
        self._act()
        now_ms = self._now()
        self._rested_ms = now_ms + min(_REST * (now_ms - began_ms), _MOST_REST_MS)

    def soon(self) -> None:
        """Does it as soon as the rest is over."""
        if self._timer is not None:
            return
        wait_s = max(0.0, self._rested_ms - self._now()) / 1000.0
        if wait_s:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.at_once)
        else:
            self.at_once()

    def still(self) -> None:
        """What was to be done later is not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
