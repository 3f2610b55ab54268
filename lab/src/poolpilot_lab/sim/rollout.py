"""The rollout oracle: tries its best few choices on copies of all engines, with the arrivals that will come next.

Greedy choices pack; this one sees what they do to those who come soon after. Each trial places the next arrivals by the
greedy oracle and runs until all of them have their first token. Slow: some ten milliseconds a decision. Conversations'
next turns are not foreseen, only their first ones.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from poolpilot_lab.engine.model import Sequence
from poolpilot_lab.sim.oracle import OWN_DECODE, Oracle
from poolpilot_lab.sim.trip import Trip

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_lab.engine.model import Engine
    from poolpilot_lab.sim.outlook import Outlook
    from poolpilot_lab.sim.world import World
    from poolpilot_lab.workload.calls import Call

TRIED: Final = 3
"""Choices that are tried: the cheapest ones by the greedy oracle's cost."""
CLOSE: Final = 1.5
"""A choice that costs more than so many times the cheapest is not tried."""
AHEAD: Final = 10
AHEAD_MS: Final = 1_500.0
"""Arrivals that a trial looks ahead, and how far at most."""
RUN_STEPS: Final = 64


class Rollout(Oracle):
    """Places by trial."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self._arrivals: list[tuple[float, Call]] = []
        self._times: list[float] = []

    def foresee(self, arrivals: list[tuple[float, Call]]) -> None:
        """What will come."""
        self._arrivals, self._times = arrivals, [at for at, _ in arrivals]

    @override
    def route(self, trip: Trip, now: float) -> int | None:
        """The choice whose trial ends best."""
        among = self._working(trip, now)
        ranked = self.ranked(trip, among, now)
        least = ranked[0][0]
        tried = [endpoint for cost, endpoint in ranked[:TRIED] if cost <= CLOSE * least + 1.0]
        if len(tried) > 1:
            first = bisect_right(self._times, now)
            coming = [one for one in self._arrivals[first : first + AHEAD] if one[0] <= now + AHEAD_MS]
            worth = {endpoint: _Trial(self, self._world).cost(trip, endpoint, coming, now) for endpoint in tried}
            tried.sort(key=lambda endpoint: worth[endpoint])
        return self._choose(trip, tried[:1], now)


class _Frozen:
    """An outlook that learns nothing from what is only tried."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def arrived(self, call: Call) -> None:
        """Not noted."""

    def lost_blocks(self, engine: Engine, count: int, own: set[int], others: Iterable[Engine]) -> float:
        """As the outlook knows."""
        return self._outlook.lost_blocks(engine, count, own, others)


class _Trial(Oracle):
    """Copies of all engines, and a greedy oracle that places on them."""

    def __init__(self, of: Rollout, world: World) -> None:
        super().__init__(world, 0)
        self._engines = [engine.twin(engine.accelerator.calm()) for engine in of._engines]
        self._present = list(of._present)
        self._transit = {
            endpoint: {_again(trip): None for trip in trips if trip.sequence is None}
            for endpoint, trips in of._transit.items()
        }
        self._uncached = dict(of._uncached)
        self._avoid_until = of._avoid_until
        frozen: Any = _Frozen(of._outlook)
        self._outlook = frozen
        self._mean_prompt = of._mean_prompt
        self._events: list[tuple[float, int, int, Trip | None]] = []
        self._count = 0

    def _at(self, time_ms: float, endpoint: int, trip: Trip | None) -> None:
        """Something happens: a trip arrives (endpoint < 0) or enters its engine, or a step ends (no trip)."""
        self._count += 1
        heapq.heappush(self._events, (time_ms, self._count, endpoint, trip))

    def cost(self, trip: Trip, endpoint: int, coming: list[tuple[float, Call]], now: float) -> float:
        """Σ over the trip and those that come: time to the first token, and the discounted time of the own decode at
        the batches that are there in the end."""
        mine = Trip(trip.call, trip.number, now)
        watched = [mine, *(Trip(call, -1 - number, at) for number, (at, call) in enumerate(coming))]
        for there, trips in self._transit.items():
            for other in trips:
                self._at(max(now, other.placed_ms + self._world.dispatch_ms), there, other)
        for number, engine in enumerate(self._engines):
            if engine.busy_until is not None:
                self._at(engine.busy_until, number, None)
        self._place(mine, endpoint, now)
        for other in watched[1:]:
            self._at(other.arrived_ms, -1, other)
        left = len(watched)
        while left and self._events:
            at, _, where, event = heapq.heappop(self._events)
            if event is None:
                left -= self._step(where, at)
            elif where < 0:
                self._place(event, self._choose(event, self._working(event, at), at), at)
            else:
                self._enter(event, where, at)
        end = max((other.first_ms for other in watched), default=now)
        return sum(self._of(other, end) for other in watched)

    def _place(self, trip: Trip, endpoint: int, now: float) -> None:
        trip.endpoint, trip.placed_ms = endpoint, now
        self._transit[endpoint][trip] = None
        self._at(now + self._world.dispatch_ms, endpoint, trip)

    def _enter(self, trip: Trip, endpoint: int, now: float) -> None:
        call, engine = trip.call, self._engines[endpoint]
        trip.sequence = Sequence(
            call.prompt_tokens, call.output_tokens, call.blocks, call.adapter or None, call.max_tokens, tag=trip
        )
        engine.add(trip.sequence, now)
        end = engine.plan(now, RUN_STEPS) if engine.busy_until is None else engine.interrupt(now)
        if end is not None:
            self._at(end, endpoint, None)

    def _step(self, endpoint: int, now: float) -> int:
        """First tokens of watched trips. Ends of runs that were shortened meanwhile settle nothing new."""
        engine = self._engines[endpoint]
        if engine.busy_until is None or engine.busy_until > now + 1e-6:
            return 0
        seen = 0
        for sequence in engine.settle(now).first_tokens:
            trip: Any = sequence.tag
            if trip.sequence is sequence and trip.first_ms == math.inf:
                trip.first_ms = now
                seen += not trip.tried
        end = engine.plan(now, RUN_STEPS)
        if end is not None:
            self._at(end, endpoint, None)
        return seen

    def _of(self, trip: Trip, end: float) -> float:
        engine, output = self._engines[trip.endpoint], trip.call.output_tokens
        decoding, context, joining, joining_context, *_ = engine.survey(end, output)
        accelerator = engine.accelerator
        step = accelerator.slow * accelerator.decode_ms(decoding + joining, context + joining_context, 0)
        return trip.ttft_ms + OWN_DECODE * output * step


def _again(trip: Trip) -> Trip:
    """A trip that is on its way, for a trial; not watched."""
    return Trip(trip.call, trip.number, trip.arrived_ms, placed_ms=trip.placed_ms, tried=[-1])
