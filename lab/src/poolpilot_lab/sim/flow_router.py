"""The picker with flow control in the simulation: its own queue, moved by ends, telemetry and the simulated clock.

What `dispatching.Dispatcher` does with an event loop is done here with events: a kick is one at this very moment,
`next_ms` one at its time. A trip that is held waits at its desk.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from poolpilot_lab.sim.pool_router import BASE_MODEL, PoolRouter
from poolpilot_lab.sim.router import TURNED_AWAY
from poolpilot_picker.flow import admission
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.pool import Placement
from poolpilot_picker.requests.request import PrefixChain
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.sim.trip import Trip
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.errors import RequestRefused
    from poolpilot_picker.flow.admission import Admitter
    from poolpilot_picker.flow.flow_settings import FlowSettings
    from poolpilot_picker.flow.pool import Pool
    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.routing.pipeline import Profile
    from poolpilot_picker.state.samples import EngineSample

LEAST_MS: Final = 1.0
"""A timer's shortest time, as in `dispatching`."""


class Waiter:
    """Waits for one trip."""

    __slots__ = ("_gone", "_trip")

    def __init__(self, trip: Trip, gone: list[tuple[Trip, Placement | None]]) -> None:
        self._trip = trip
        self._gone = gone

    def dispatched(self, placement: Placement, now: float) -> None:
        """It was placed."""
        self._gone.append((self._trip, placement))

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        """It will not be placed."""
        self._gone.append((self._trip, None))

    def unplaceable(self, now: float) -> None:
        """A fault of ours, which no figure may hide: raised on."""
        raise


class Desk:
    """Flow control of one pool, with its clock. `ask`: for a call of `turn` at a time."""

    def __init__(self, pool: Pool, settings: FlowSettings) -> None:
        self.pool = pool
        self.control = FlowControl(pool, settings)
        self.ask: Callable[[float], None] = _nobody
        self._gone: list[tuple[Trip, Placement | None]] = []
        self._kick = False
        self._timer = math.inf
        pool.flow = self.control
        self.control.kick = self._kicked

    def _kicked(self) -> None:
        self._kick = True
        self.ask(-math.inf)

    def submit(self, trip: Trip, request: InferenceRequest, now: float) -> Placement | None:
        """Where it was placed at once; None: it is held. Raises RequestRefused."""
        found = self.control.submit(request, Waiter(trip, self._gone), now)
        return found if isinstance(found, Placement) else None

    def turn(self, now: float) -> list[tuple[Trip, Placement | None]]:
        """Lets the queue move, where it asked for that or its time has come: who left it, placed or turned away."""
        if self._kick or now >= self._timer:
            self._kick = False
            self.control.advance(now)
            when = max(now + LEAST_MS, self.control.next_ms)
            if when < math.inf and when != self._timer:
                self.ask(when)
            self._timer = when
        gone = list(self._gone)
        self._gone.clear()
        return gone


class FlowRouter(PoolRouter):
    """Every picker with a queue of its own."""

    def __init__(
        self,
        world: World,
        policy: Callable[[], Profile],
        seed: int,
        settings: Callable[[Callable[[], float]], FlowSettings],
        **more: Any,
    ) -> None:
        """settings: of flow control, from something to draw numbers in [0, 1) with; `more`: of the pools."""
        super().__init__(world, policy, seed, **more)
        self.desks = [Desk(pool, settings(self._draw.random)) for pool in self.pools]

    def wakes(self, ask: Callable[[float], None]) -> None:
        """`ask`: for a call of `released` at a time."""
        for desk in self.desks:
            desk.ask = ask

    @override
    def route(self, trip: Trip, now: float) -> int | None:
        """Places or holds the trip; raises RequestRefused."""
        desk = self.desks[trip.picker]
        placement = trip.placement = desk.submit(trip, self._request(trip, desk.pool), now)
        return None if placement is None else self._endpoint(placement)

    @override
    def released(self, now: float) -> list[tuple[Trip, int]]:
        """Those that leave the queues, or are turned away."""
        released = []
        for desk in self.desks:
            for trip, placement in desk.turn(now):
                trip.placement = placement
                released.append((trip, TURNED_AWAY if placement is None else self._endpoint(placement)))
        return released

    def _endpoint(self, placement: Placement) -> int:
        return self._index[placement.booking.endpoint.address]


class QueuesRouter(FlowRouter):
    """A queue for each endpoint: bound when a request comes, by the least predicted work ahead, and then held until
    that endpoint has room. What late binding is compared with."""

    def __init__(self, world: World, policy: Callable[[], Profile], seed: int, **more: Any) -> None:
        """The arguments of FlowRouter. Every endpoint has a pool of its own, in the place of a picker's."""
        super().__init__(replace(world, pickers=len(world.fleet)), policy, seed, **more)
        self._tokens = [0.0] * len(world.fleet)
        """Uncached prompt tokens that wait for each endpoint."""
        self._waiting: dict[Trip, float] = {}

    @override
    def present(self, endpoints: list[int], now: float) -> None:
        for endpoint, pool in enumerate(self.pools):
            host = self._addresses[endpoint].removesuffix(":8000")
            spec = EndpointSpec(host=host, port=8000, labels={"endpoint": str(endpoint)})
            pool.apply_endpoints([spec] if endpoint in endpoints else [])

    @override
    def sampled(self, picker: int, endpoint: int, sample: EngineSample, now: float) -> None:
        super().sampled(endpoint, endpoint, sample, now)

    @override
    def route(self, trip: Trip, now: float) -> int | None:
        """Binds the trip; raises RequestRefused."""
        there = [e for e, pool in enumerate(self.pools) if pool.table.any_wanted and e not in trip.tried]
        ahead = {endpoint: self._ahead(trip, endpoint, now) for endpoint in there}
        trip.picker = min(ahead, key=lambda endpoint: ahead[endpoint][0])
        found = super().route(trip, now)
        if found is None:
            self._waiting[trip] = ahead[trip.picker][1]
            self._tokens[trip.picker] += self._waiting[trip]
        return found

    def _ahead(self, trip: Trip, endpoint: int, now: float) -> tuple[float, float]:
        """(ms until its first token, and a quarter of its own decoding there; its uncached tokens)."""
        pool, call = self.pools[endpoint], trip.call
        table, slot = pool.table, next(iter(pool.table.wanted())).slot
        prefix = PrefixChain(hashes=call.blocks, ends=self._ends[: len(call.blocks)])  # type: ignore[arg-type]
        uncached = call.prompt_tokens - float(pool.prefixes.match(prefix, call.prompt_tokens - 1.0)[slot])
        batch = table.inflight.item(slot) + len(self.desks[endpoint].control.queue)
        step = table.step_ms.item(slot) + table.sequence_ms.item(slot) * batch
        wait = max(0.0, table.free_at_ms.item(slot) - now)
        tokens = self._tokens[endpoint] + uncached
        output = pool.lengths.expected(BASE_MODEL, call.tenant, call.max_tokens)
        return wait + tokens * table.token_ms.item(slot) + 0.25 * output * step, uncached

    @override
    def released(self, now: float) -> list[tuple[Trip, int]]:
        released = super().released(now)
        for trip, _ in released:
            self._tokens[trip.picker] -= self._waiting.pop(trip)
        return released


class SheddingRouter(PoolRouter):
    """Immediate binding behind an admitter: what a picker without a queue does about overload."""

    def __init__(
        self,
        world: World,
        policy: Callable[[], Profile],
        seed: int,
        admitter: Callable[[Callable[[], float]], Admitter],
        **more: Any,
    ) -> None:
        """admitter: from something to draw numbers in [0, 1) with; `more`: of the pools."""
        super().__init__(world, policy, seed, **more)
        self._admitters = [admitter(self._draw.random)]

    @override
    def route(self, trip: Trip, now: float) -> int | None:
        """Places the trip, or sheds it: raises RequestRefused."""
        pool = self._pool(trip.picker)
        request = self._request(trip, pool)
        admission.check(self._admitters, request, pool, now)
        placement = trip.placement = pool.place(request, now)
        return self._index[placement.booking.endpoint.address]


def _nobody(_: float) -> None:
    """Before the run begins."""
