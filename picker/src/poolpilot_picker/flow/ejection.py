"""Which endpoints of a pool are left out because they fail, or are far slower than the rest. Beside the pool, which
tells it of every answer and asks it before every decision.

It steers: never more than a share of the pool is out, and where nobody else may serve a request it removes nobody. An
endpoint that never fails costs nothing here.
"""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_picker.flow.outcome import EJECTS, Outcome
from poolpilot_picker.learning.breaker import Breaker, EjectionSettings, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable

EJECTED: Final = "ejected"
ON_TRIAL: Final = "on trial"
TOO_SLOW: Final = "slower than the pool"
LEAST_TIMED: Final = 20
"""Answers of an endpoint before its time is believed."""
LEAST_PEERS: Final = 3
"""Endpoints with so many answers before one is compared with them."""
SMOOTHING: Final = 0.1


class _Pace:
    """How long answers of one endpoint took against what was predicted: mean logarithm, the newest weigh most."""

    __slots__ = ("answers", "log")

    def __init__(self) -> None:
        self.answers = 0
        self.log = 0.0

    def observe(self, ratio: float) -> None:
        self.answers += 1
        self.log += max(SMOOTHING, 1.0 / self.answers) * (math.log(ratio) - self.log)


class Ejector:
    """Of one pool. `forgive` is told of an endpoint whose failures no longer count: its trial begins."""

    def __init__(self, table: EndpointTable, settings: EjectionSettings, forgive: Callable[[Endpoint], None]) -> None:
        self._table = table
        self._settings = settings
        self._forgive = forgive
        self._breakers: dict[Endpoint, Breaker] = {}
        """Of those that have failed lately."""
        self.watching: Collection[Endpoint] = self._breakers.keys()
        """The same: only of these a good answer says something."""
        self._paces: dict[Endpoint, _Pace] = {}
        self.out: dict[Endpoint, Breaker] = {}
        """Those that are left out or on trial."""
        self.timed = settings.slow_factor is not None
        """`took` is to be told."""
        self.counts: Counter[str] = Counter()
        """Ejections so far, by reason."""

    # ---- answers

    def answered(self, endpoint: Endpoint, outcome: Outcome, placed_ms: float, now: float) -> None:
        """How a request ended that was placed there at `placed_ms`. Only what a pod did, or failed to do, counts."""
        if outcome in EJECTS:
            self.failed(endpoint, placed_ms, now)
        elif self._breakers and outcome is Outcome.SERVED:
            breaker = self._breakers.get(endpoint)
            if breaker is None:
                return
            if breaker.served(now, placed_ms):
                self.out.pop(endpoint, None)
            elif breaker.at_rest(now):
                del self._breakers[endpoint]

    def failed(self, endpoint: Endpoint, placed_ms: float, now: float) -> None:
        """It failed a request that was placed at `placed_ms`."""
        if not self._table.holds(endpoint):
            return
        breaker = self._breakers.get(endpoint)
        if breaker is None:
            breaker = self._breakers[endpoint] = Breaker(self._settings)
        reason = breaker.failed(now, placed_ms)
        if reason:
            self._eject(endpoint, breaker, reason, now)

    def took(self, endpoint: Endpoint, took_ms: float, predicted_ms: float, now: float) -> None:
        """An answer was complete after `took_ms`, where it was predicted to take `predicted_ms`."""
        factor = self._settings.slow_factor
        if factor is None or predicted_ms <= 0.0 or took_ms <= 0.0 or not self._table.holds(endpoint):
            return
        pace = self._paces.setdefault(endpoint, _Pace())
        pace.observe(took_ms / predicted_ms)
        if pace.answers < LEAST_TIMED or endpoint in self.out:
            return
        known = [one.log for one in self._paces.values() if one.answers >= LEAST_TIMED]
        if len(known) >= LEAST_PEERS and pace.log - median(known) > math.log(factor):
            del self._paces[endpoint]  # what it is like afterwards is to be seen anew
            breaker = self._breakers.setdefault(endpoint, Breaker(self._settings))
            self._eject(endpoint, breaker, TOO_SLOW, now)

    def _eject(self, endpoint: Endpoint, breaker: Breaker, reason: str, now: float) -> None:
        """Unless too much of the pool would be out. One that drains gets nothing anyway, and is no part of the pool."""
        if endpoint.draining or (endpoint not in self.out and len(self.out) >= self._most()):
            return
        breaker.eject(now)
        self.out[endpoint] = breaker
        self.counts[reason] += 1

    def _most(self) -> int:
        wanted = len(self._table.wanted())
        return min(math.floor(self._settings.most_share * wanted), wanted - 1)

    # ---- decisions

    def narrow(self, view: DecisionView) -> None:
        """Removes who is out; on trial, whose next request is not due. Nobody, where nobody would be left."""
        now, ejected, trial = view.now, [], []
        for endpoint, breaker in self.out.items():
            if breaker.look(now):
                self._forgive(endpoint)
            if breaker.state is State.OPEN:
                ejected.append(endpoint.slot)
            elif now < breaker.next_ms:
                trial.append(endpoint.slot)
        kept = np.ones(len(view.mask), dtype=np.bool_)
        kept[ejected + trial] = False
        if (view.mask & kept).any():
            for slots, because in ((ejected, EJECTED), (trial, ON_TRIAL)):
                if slots:
                    kept = np.ones(len(view.mask), dtype=np.bool_)
                    kept[slots] = False
                    view.keep(kept, because)

    def placed(self, endpoint: Endpoint, now: float) -> None:
        """A request was placed there."""
        breaker = self.out.get(endpoint)
        if breaker is not None:
            breaker.placed(now)

    # ---- endpoints

    def standing(self, endpoint: Endpoint) -> str:
        """In words; empty where nothing is held against it."""
        breaker = self.out.get(endpoint)
        return "" if breaker is None else EJECTED if breaker.state is State.OPEN else ON_TRIAL

    def apply_endpoints(self) -> None:
        """The set of endpoints changed: who has been out for longest comes back where too much is out."""
        for endpoint in [one for one in self.out if one.draining]:
            self.out.pop(endpoint).release()
        most = max(0, self._most())
        while len(self.out) > most:
            endpoint = next(iter(self.out))
            self.out.pop(endpoint).release()
            self._forgive(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        for known in (self._breakers, self._paces, self.out):
            known.pop(endpoint, None)
