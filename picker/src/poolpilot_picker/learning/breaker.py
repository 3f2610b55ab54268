"""Whether an endpoint is left out for a while: the circuit breaker of one endpoint. Beside `failures`, whose penalty
only makes an endpoint dearer; a breaker holds for every policy, and lets an endpoint back by a trickle.

Closed until failures trip it; open for a time that doubles from one ejection to the next; then on trial: a request now
and then, of which a few must be served in a row. What says nothing of the endpoint (4xx, the data plane's own answers,
clients that went away) is not told here.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

import msgspec

HALF_LIFE_MS: Final = 10_000.0
"""In which the count of answers halves, of which failures must be a share."""
AT_REST: Final = 0.5
"""With fewer recent failures there is nothing to remember."""
FORGOTTEN: Final = 5.0
"""After so many times its last ejection without another one, an endpoint begins anew."""


class EjectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of all endpoints of a pool."""

    most_share: float = 0.5
    """Of the pool that may be left out at a time; rounded down. 0: nothing is ever ejected."""
    consecutive: int = 5
    """Failures in a row that eject."""
    share: float = 0.5
    """Failures among the latest answers that eject, where there are `least` answers."""
    least: int = 20
    slow_factor: float | None = None
    """Slower against its prediction than the pool's median by so much; None: time ejects nothing."""
    first_ms: float = 10_000.0
    """How long an endpoint is left out at first."""
    most_ms: float = 300_000.0
    trial_ms: float = 1_000.0
    """Between two requests of an endpoint on trial."""
    trials: int = 3
    """Requests served in a row that end a trial."""


class State(IntEnum):
    """Of a breaker."""

    CLOSED = 0
    TRIAL = 1
    OPEN = 2


class Breaker:
    """Of one endpoint. Times in ms; `placed_ms`: when the request was placed that the news is of."""

    __slots__ = (
        "_answers",
        "_at_ms",
        "_closed_ms",
        "_failed",
        "_in_a_row",
        "_passed",
        "_rest_ms",
        "_settings",
        "_times",
        "next_ms",
        "state",
    )

    def __init__(self, settings: EjectionSettings) -> None:
        self._settings = settings
        self.state = State.CLOSED
        self._in_a_row = self._times = self._passed = 0
        self._failed = self._answers = 0.0
        self._at_ms = self._closed_ms = -math.inf
        self._rest_ms = 0.0
        self.next_ms = 0.0
        """Open: when the trial begins. On trial: when the next request may go."""

    def _decay(self, now: float) -> None:
        fade = math.exp2(min(0.0, self._at_ms - now) / HALF_LIFE_MS)
        self._failed *= fade
        self._answers *= fade
        self._at_ms = now

    def failed(self, now: float, placed_ms: float) -> str:
        """It failed a request. Why it is to be ejected; empty where it is not."""
        settings = self._settings
        if self.state is State.OPEN or placed_ms < self._closed_ms:
            return ""
        if self.state is State.TRIAL:
            return "failed on trial"
        self._decay(now)
        self._failed += 1.0
        self._answers += 1.0
        self._in_a_row += 1
        if self._in_a_row >= settings.consecutive:
            return "failures in a row"
        if self._answers >= settings.least and self._failed >= settings.share * self._answers:
            return "share of failures"
        return ""

    def served(self, now: float, placed_ms: float) -> bool:
        """It served a request. True where that ends its trial."""
        if self.state is State.OPEN or placed_ms < self._closed_ms:
            return False
        if self.state is State.CLOSED:
            self._decay(now)
            self._answers += 1.0
            self._in_a_row = 0
            return False
        self._passed += 1
        if self._passed < self._settings.trials:
            return False
        self.state, self._closed_ms = State.CLOSED, now
        self._forget()
        return True

    def eject(self, now: float) -> None:
        """Leaves the endpoint out from now on, for twice as long as the last time."""
        settings = self._settings
        if now > self._closed_ms + FORGOTTEN * self._rest_ms:
            self._times = 0
        self._rest_ms = min(settings.most_ms, settings.first_ms * 2.0 ** min(self._times, 30))
        self._times += 1
        self.state, self.next_ms = State.OPEN, now + self._rest_ms

    def release(self) -> None:
        """Ends an ejection or a trial: too much of the pool would be left out."""
        self.state = State.CLOSED
        self._forget()

    def _forget(self) -> None:
        """What happened before says nothing any more."""
        self._failed = self._answers = 0.0
        self._in_a_row = 0

    def look(self, now: float) -> bool:
        """Begins the trial when its time has come. True where it has just begun."""
        if self.state is not State.OPEN or now < self.next_ms:
            return False
        self.state, self.next_ms, self._passed = State.TRIAL, now, 0
        self._closed_ms = now
        return True

    def placed(self, now: float) -> None:
        """A request was placed there."""
        if self.state is State.TRIAL:
            self.next_ms = now + self._settings.trial_ms

    def at_rest(self, now: float) -> bool:
        """Nothing would be lost with it."""
        if self.state is not State.CLOSED or now <= self._closed_ms + FORGOTTEN * self._rest_ms:
            return False
        self._decay(now)
        return self._failed < AT_REST
