"""The load axis: the highest rate at which the oracle's backlog stays bounded, found in steps. ρ = rate ÷ that rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.oracle import Oracle

if TYPE_CHECKING:
    from poolpilot_lab.sim.fleet import Record
    from poolpilot_lab.sim.scenario import Scenario
    from poolpilot_lab.sim.world import World

STEP: Final = 1.06
"""Ratio of the rates between which the search ends: the highest rate is found to within 6 %, from below."""
HOPELESS: Final = 40.0
"""Waiting sequences per endpoint from which on nobody need look further."""
GROWTH: Final = 1.5
FIXED: Final = 1.0
MOST_WAITING: Final = 4.0
"""Bounded: the mean backlog in the last quarter is at most 1.5 times that of the second one, plus one per endpoint, and
at most four per endpoint: conversations that wait for their answers slow their own arrivals down."""


def highest_rate(scenario: Scenario, world: World, seed: int) -> float:
    """Requests/s, of one hidden draw."""

    def bounded(rate: float) -> bool:
        return _is_bounded(scenario, world, seed, rate)

    low = high = scenario.guess * speed(world, seed)
    if bounded(low):
        while bounded(high := high * STEP):
            low = high
    else:
        while not bounded(low := low / STEP):
            high = low
    return low


def speed(world: World, seed: int) -> float:
    """How fast the engines of a hidden draw are about, as a share of what their profiles say."""
    engines = [engine.accelerator for engine in world.engines(seed)]
    return sum([1.0 / math.sqrt(one.prefill_factor * one.decode_factor) for one in engines]) / len(engines)


def _is_bounded(scenario: Scenario, world: World, seed: int, rate: float) -> bool:
    traffic = scenario.traffic(rate, round(rate * scenario.search_s), seed)
    hopeless = HOPELESS * len(world.fleet)
    record = Simulation(
        world, traffic, Oracle(world, seed), seed, scenario.warm_share, drain_ms=0.0, most_waiting=hopeless
    ).run()
    return _bounded(record, len(world.fleet))


def _bounded(record: Record, endpoints: int) -> bool:
    if not record.backlog or record.backlog[-1][1] > HOPELESS * endpoints:
        return False
    span = record.end_ms - record.begin_ms
    second = [waiting for at, waiting in record.backlog if 0.25 <= (at - record.begin_ms) / span < 0.5]
    last = [waiting for at, waiting in record.backlog if (at - record.begin_ms) / span >= 0.75]
    if not second or not last:
        raise ValueError("the run is too short to see a backlog grow; more requests are needed")
    allowed = min(GROWTH * sum(second) / len(second) + FIXED * endpoints, MOST_WAITING * endpoints)
    return sum(last) / len(last) <= allowed
