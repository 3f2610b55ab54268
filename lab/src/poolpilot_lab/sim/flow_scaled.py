"""The simulation with an autoscaler that acts on what the router exports: pods start late, and are drained.

It sees what an HPA would: a picker with flow control tells its queue and its saturation (`admin.pool_signals`), any
other router only what the engines say to be waiting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from poolpilot_lab.sim.fleet import START_MS, Simulation
from poolpilot_lab.sim.flow_autoscaler import Autoscaler, Signal
from poolpilot_lab.sim.flow_router import FlowRouter
from poolpilot_lab.sim.world import Change
from poolpilot_picker.admin.pool_signals import pool_signals

if TYPE_CHECKING:
    from poolpilot_lab.sim.fleet import Record
    from poolpilot_lab.sim.router import Router
    from poolpilot_lab.sim.world import World
    from poolpilot_lab.workload.calls import Traffic


class ScaledSimulation(Simulation):
    """One run in a world with `scaling`."""

    def __init__(self, world: World, traffic: Traffic, router: Router, seed: int, warm_share: float = 0.15) -> None:
        super().__init__(world, traffic, router, seed, warm_share)
        assert world.scaling is not None
        self._scaling = world.scaling
        self._autoscaler = Autoscaler(world.scaling, len(world.fleet))
        first = min(world.scaling.first, len(world.fleet))
        self._pods = list(range(first))
        """Endpoints that were asked for, in this order."""
        self._signals: list[Signal] = []
        self._ready: list[tuple[float, int]] = [(0.0, first)]
        self._engines_wait: list[float] = []

    @override
    def run(self) -> Record:
        self._at(START_MS + self._scaling.scrape_ms, self._scrape, None)
        self._at(START_MS + self._scaling.sync_ms, self._sync, None)
        return super().run()

    def _scrape(self, _: None) -> None:
        self._tell()
        self._signals = self._told_signals()
        if self.now < self._record.end_ms:
            self._at(self.now + self._scaling.scrape_ms, self._scrape, None)

    def _told_signals(self) -> list[Signal]:
        scaling, router = self._scaling, self._router
        if not isinstance(router, FlowRouter):
            waiting = sum(len(engine.waiting) for engine in self.engines)
            return [Signal(float(waiting), scaling.queue_target, average=True)]
        told = [pool_signals(desk.pool, self.now) for desk in router.desks]
        queue = max(one.engine_queue for one in told) + sum(one.held for one in told)
        return [
            Signal(queue, scaling.queue_target, average=True),
            Signal(max(one.saturation for one in told), scaling.saturation_target, average=False),
        ]

    def _sync(self, _: None) -> None:
        pods = self._pods
        count = self._autoscaler.decide(self._signals, len(pods), len(self._present()), self.now)
        for endpoint in [one for one in range(len(self.engines)) if one not in pods][: max(0, count - len(pods))]:
            pods.append(endpoint)
            self._at(self.now + self._scaling.start_ms, self._started, endpoint)
        while len(pods) > count:
            endpoint = pods.pop()
            if self._listed[endpoint]:
                self._delist(endpoint)
                self._count_ready()
        if self.now < self._record.end_ms:
            self._at(self.now + self._scaling.sync_ms, self._sync, None)

    def _started(self, endpoint: int) -> None:
        if endpoint in self._pods and not self._listed[endpoint]:
            self._change(Change(0.0, "start", endpoint))
            self._count_ready()

    def _count_ready(self) -> None:
        self._ready.append(((self.now - START_MS) / 1000.0, len(self._present())))

    @override
    def _watch(self, _: None) -> None:
        if START_MS + self._scaling.since_ms <= self.now <= self._record.end_ms:
            self._engines_wait.append(sum(len(engine.waiting) for engine in self.engines) / len(self._present()))
        super()._watch(_)

    @property
    def figures(self) -> dict[str, Any]:
        """Of the run, when it is over. Sequences that wait are for each endpoint, one look a second, from the moment
        at which the load begins to grow; `scaled_s` counts from there, infinite where the goal was not reached."""
        since = self._scaling.since_ms / 1000.0
        reached = [at for at, count in self._ready if count >= self._scaling.goal]
        waits = self._engines_wait or [math.nan]
        return {
            "scaled_s": min(reached) - since if reached else math.inf,
            "endpoints": self._ready,
            "engine_waiting_mean": sum(waits) / len(waits),
            "engine_waiting_max": max(waits),
        }
