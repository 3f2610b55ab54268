"""Polls the engines of a pool: each on its own pace, none waiting for another, all of them bounded.

Endpoints with work are read every `fast_ms`, idle ones every `slow_ms`; an idle one that our ledger books on is read
soon. Endpoints whose last read failed have a lane of their own, so that however many hang, the others are read on time.

One scheduler starts all reads, a few at a time, and ends those that take too long; most reads have neither a task nor a
timer. Requests come first: reading takes a share of the event loop's time and no more. Where that is not enough for all
endpoints at their pace, all are read less often, whoever waits longest first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
import time
from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.engines import BUILTIN, Engine, engine_named
from poolpilot_picker.sources.errors import ErrorKind
from poolpilot_picker.sources.http import Client, HttpClient
from poolpilot_picker.sources.http_connection import Meter
from poolpilot_picker.sources.stats import EndpointHealth, TelemetryStats
from poolpilot_picker.sources.surroundings import Settings, Surroundings, TelemetrySink
from poolpilot_picker.sources.watch import EndpointWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from poolpilot_picker.sources.cadence import Plan
    from poolpilot_picker.sources.credentials import BearerToken
    from poolpilot_picker.state.endpoints import EndpointSpec

log: Final = logging.getLogger(__name__)

_LONGEST_REST_MS: Final = 20.0
_SHORTEST_REST_MS: Final = 8.0
"""Each turn costs as much as half a page, and a page that follows another one takes less time: what is due within one
turn starts together, at most `_BURST`."""
_BURST: Final = 32
"""Reads started in one turn: a third of a millisecond, and one for their answers."""
_STALL_MS: Final = 100.0
"""A turn that comes so long after the last one: the process stood still, and answers may be there that nobody read."""
_SWEEP: Final = 128
"""Endpoints whose account is looked at in one turn."""
_TASK_S: Final = 0.0003
"""What a read with a task, and mostly with a new connection, is counted as beyond the arrival of its answer."""
_SAVED_MS: Final = 5.0
"""Time of the event loop that was not used and may be used later."""
_OWED_MS: Final = 25.0
"""The most that a turn has to make good. What took longer was no reading: the process was suspended or throttled."""


def monotonic_ms() -> float:
    """The picker's clock."""
    return time.monotonic() * 1000.0


class _Lane:
    """Reads that are due, by time, and how many may run at once."""

    __slots__ = ("due", "limit", "running")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self.due: list[tuple[float, int, EndpointWatch, Plan]] = []


class TelemetrySource:
    """Feeds `sink` from the endpoints of `update`, while `run` runs.

    `in_flight(spec)` is our ledger's count on an endpoint; `connect(host, port)` makes a Client; `now()` is in ms.
    """

    def __init__(
        self,
        sink: TelemetrySink,
        *,
        settings: Settings | None = None,
        engines: Mapping[str, Engine] = BUILTIN,
        token: BearerToken | None = None,
        in_flight: Callable[[EndpointSpec], float] = lambda _: 0.0,
        connect: Callable[[str, int], Client] | None = None,
        now: Callable[[], float] = monotonic_ms,
        rng: random.Random | None = None,
        concurrency: int = 256,
        suspect_concurrency: int = 32,
    ) -> None:
        settings = settings or Settings()
        self.stats = TelemetryStats()
        self.meter = Meter()
        self._sink = sink
        self._engines = engines
        self._in_flight = in_flight
        self._now = now
        self._around = Surroundings(
            sink=sink,
            now=now,
            settings=settings,
            stats=self.stats,
            meter=self.meter,
            connect=connect or (lambda host, port: HttpClient(host, port, tls=settings.tls, meter=self.meter)),
            token=token,
            rng=rng or random.Random(),
            searching=asyncio.Lock(),
            in_flight=in_flight,
        )
        self._watches: dict[tuple[str, int], EndpointWatch] = {}
        self._unknown: dict[tuple[str, int], EndpointSpec] = {}
        self._good = _Lane(concurrency)
        self._suspect = _Lane(suspect_concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sequence = itertools.count()
        self._polls: dict[EndpointWatch, tuple[float, _Lane]] = {}
        """Reads without a task: when their time is used up, by `_running_ms`, and the lane they are in."""
        self._turned_ms, self._stood_ms = now(), 0.0
        """When the last turn was, and how long the process has stood still."""
        self._share = settings.share
        self._allowance_ms = _SAVED_MS
        self._busy_ms = 0.0
        self._swept_ms = self._accounted_ms = now()
        self._unswept: list[EndpointWatch] = []

    def update(self, endpoints: Iterable[EndpointSpec]) -> None:
        """Makes the watched set equal to `endpoints`. One that is the same keeps its connection and history."""
        wanted = {spec.key: spec for spec in endpoints}
        for key, watch in list(self._watches.items()):
            if wanted.get(key) != watch.spec:
                watch.close()
                del self._watches[key]
                if key not in wanted or wanted[key].address != watch.spec.address:
                    self.stats.endpoints.pop(watch.spec.address, None)
        self._unknown = {key: spec for key, spec in self._unknown.items() if wanted.get(key) == spec}
        for key, spec in wanted.items():
            if key not in self._watches and key not in self._unknown:
                self._add(key, spec)

    def _add(self, key: tuple[str, int], spec: EndpointSpec) -> None:
        try:
            engine = engine_named(spec.engine, self._engines, where=f"endpoint {spec.address}")
            watch = EndpointWatch(spec, engine, self._around)
        except ConfigurationError as error:
            # Discovery may bring this at any time (a pod's label): it costs this endpoint its telemetry, nothing else.
            log.warning("no telemetry: %s", error)
            now = self._now()
            self._unknown[key] = spec
            self.stats.error(ErrorKind.UNKNOWN_ENGINE)
            self.stats.endpoints[spec.address] = EndpointHealth(failing_since_ms=now, reason=ErrorKind.UNKNOWN_ENGINE)
            self._sink.on_unreachable(spec, ErrorKind.UNKNOWN_ENGINE, now)
            return
        self._watches[key] = watch
        self._push(watch, watch.metrics_plan)
        if watch.models_plan is not None:
            self._push(watch, watch.models_plan)

    def wake(self, spec: EndpointSpec) -> None:
        """Reads an endpoint now, unless it is failing."""
        watch = self._watches.get(spec.key)
        if watch is not None:
            watch.metrics_plan.hasten(self._now())
            self._push(watch, watch.metrics_plan)

    async def run(self) -> None:
        """Polls until cancelled, then drops all connections."""
        try:
            while True:
                self.start_due()
                await asyncio.sleep(self._rest_ms() / 1000.0)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops watching; waits for running reads to end."""
        self.update(())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start_due(self) -> int:
        """Starts the reads that are due now, as many as one turn may and the share of time allows; returns how many."""
        now = self._now()
        self._give_up(self._running_ms(now))
        self._sweep(now)
        started = 0
        if self._allowed(now):
            started = self._start_lane(self._suspect, now, _BURST)
            started += self._start_lane(self._good, now, _BURST - started)
            self.meter.busy_s += (self._now() - now) / 1000.0
        due = self._good.due
        self.stats.overdue_ms = max(0.0, now - due[0][0]) if due else 0.0
        self.stats.busy_s = self.meter.busy_s
        return started

    def _rest_ms(self) -> float:
        """Until there is something to start again."""
        now = self._now()
        rest = _LONGEST_REST_MS
        for lane in (self._good, self._suspect):
            if lane.due and lane.running < lane.limit:
                rest = min(rest, lane.due[0][0] - now)
        if self._allowance_ms <= 0.0:
            rest = max(rest, -self._allowance_ms / self._share)
        return min(max(rest, _SHORTEST_REST_MS), _LONGEST_REST_MS)

    def _allowed(self, now: float) -> bool:
        """There is time left of our share."""
        # By the clock, not by the processor's time: where others have the processor, requests wait for it already.
        busy = self.meter.busy_s * 1000.0
        spent = busy - self._busy_ms
        allowance = self._allowance_ms + (now - self._accounted_ms) * self._share - spent
        self._allowance_ms = max(-_OWED_MS, min(_SAVED_MS, allowance))
        self._accounted_ms, self._busy_ms = now, busy
        return self._allowance_ms > 0.0

    def _running_ms(self, now: float) -> float:
        """The time, without what the process stood still: an endpoint is not judged by that. A turn comes before what
        has arrived meanwhile is read."""
        since, self._turned_ms = now - self._turned_ms, now
        if since > _STALL_MS:
            self._stood_ms += since - _LONGEST_REST_MS
        return now - self._stood_ms

    def _give_up(self, running: float) -> None:
        """Ends the polls whose time is used up; they are in the order in which they began."""
        while self._polls:
            watch, (deadline, _) = next(iter(self._polls.items()))
            if deadline > running:
                return
            watch.give_up()

    def _sweep(self, now: float) -> None:
        """Idle endpoints that got work since their last read are read now."""
        fast = self._around.settings.cadence.fast_ms
        if not self._unswept and now - self._swept_ms >= fast:
            self._swept_ms = now
            self._unswept = list(self._watches.values())
        for watch in self._unswept[-_SWEEP:]:
            plan = watch.metrics_plan
            if plan.due_ms > now + fast and not plan.running and self._in_flight(watch.spec) > 0 and not watch.closed:
                plan.hasten(now)
                self._push(watch, plan)
        del self._unswept[-_SWEEP:]

    def _push(self, watch: EndpointWatch, plan: Plan) -> None:
        """Queues a read at its due time, in the lane it belongs to; an entry with another time or lane becomes void."""
        if plan.running:
            return
        place = (plan.due_ms, watch.trusted(plan))
        if plan.queued == place:
            return
        plan.queued = place
        lane = self._good if place[1] else self._suspect
        heapq.heappush(lane.due, (plan.due_ms, next(self._sequence), watch, plan))

    def _start_lane(self, lane: _Lane, now: float, most: int) -> int:
        started = 0
        while lane.due and lane.due[0][0] <= now and lane.running < lane.limit and started < most:
            due, _, watch, plan = heapq.heappop(lane.due)
            if watch.closed or plan.running or plan.queued != (due, lane is self._good):
                continue
            plan.queued = None
            plan.begin()
            lane.running += 1
            started += 1
            if plan is watch.metrics_plan:
                self.stats.polls += 1
                if lane is self._good:
                    deadline = now - self._stood_ms + self._around.settings.limits.timeout_ms
                    self._polls[watch] = (deadline, lane)
                    if watch.poll(now, self._polled):
                        continue
                    del self._polls[watch]
            self._spawn(watch, plan, lane)
        return started

    def _polled(self, watch: EndpointWatch, again: bool) -> None:
        """A poll has ended, or needs a task to be completed."""
        _, lane = self._polls.pop(watch)
        if again:
            self._spawn(watch, watch.metrics_plan, lane)
        elif watch.models_moved:
            self._ended(watch, lane)
        else:
            lane.running -= 1
            plan = watch.metrics_plan
            if not watch.closed and plan.queued is None:
                # A good poll: as `_push`, without asking what is known.
                plan.queued = (plan.due_ms, True)
                heapq.heappush(self._good.due, (plan.due_ms, next(self._sequence), watch, plan))

    def _spawn(self, watch: EndpointWatch, plan: Plan, lane: _Lane) -> None:
        self.meter.busy_s += _TASK_S
        task = asyncio.get_running_loop().create_task(self._read(watch, plan, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, watch: EndpointWatch, plan: Plan, lane: _Lane) -> None:
        began = self._now()
        try:
            if plan is watch.metrics_plan:
                await watch.read_metrics()
            else:
                await watch.read_models()
        except Exception:
            watch.fault(plan, began)
        finally:
            self._ended(watch, lane)

    def _ended(self, watch: EndpointWatch, lane: _Lane) -> None:
        lane.running -= 1
        watch.models_moved = False
        if not watch.closed:
            self._push(watch, watch.metrics_plan)
            # One read may hasten the other of its endpoint, or change how far it is trusted.
            if watch.models_plan is not None:
                self._push(watch, watch.models_plan)
