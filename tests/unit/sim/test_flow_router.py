"""Flow control as it is runs in the simulation: what is held is dispatched or turned away, each exactly once."""

from __future__ import annotations

import math

import pytest

from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.flow_policies import FLOW, FLOW_POLICIES, FlowPolicy
from poolpilot_lab.sim.measures import quantile
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.scenarios import SCENARIOS
from poolpilot_lab.sim.trip import POOLPILOT, Fate
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.queue import QueueSettings

RATE = 220.0
"""Requests/s: half as much again as the eight engines bear."""


def play(policy: str, count: int = 800, name: str = "S13"):
    scenario = SCENARIOS[name]
    world = scenario.world()
    router = make_router(policy, world, 1)
    return router, Simulation(world, scenario.traffic(RATE, count, 1), router, 1, 0.3).run()


def p99(record, label: str) -> float:
    return quantile([trip.ttft_ms for trip in record.measured if trip.call.label == label], 0.99)


def test_beyond_saturation_what_is_critical_waits_for_less_than_where_all_is_placed_at_once() -> None:
    _, at_once = play(POOLPILOT, 1_600)
    router, held = play(FLOW, 1_600)
    assert p99(held, "critical") < 0.8 * p99(at_once, "critical")
    assert p99(held, "sheddable") > p99(held, "critical")
    assert all(trip.fate is Fate.SERVED for trip in held.measured)
    assert [len(desk.control.queue) for desk in router.desks] == [0]
    assert router.pools[0].table.requests.sum() == sum(trip.fate is Fate.OPEN for trip in held.trips)


def test_who_waits_too_long_is_turned_away_and_counts_as_infinitely_late(monkeypatch) -> None:
    short = FlowSettings(queue=QueueSettings(ttl_ms=400.0))
    monkeypatch.setitem(FLOW_POLICIES, FLOW, FlowPolicy("", short))
    _, record = play(FLOW)
    refused = [trip for trip in record.measured if trip.fate is Fate.REFUSED]
    assert refused
    assert all(math.isinf(trip.ttft_ms) and trip.placement is None for trip in refused)
    # Nobody waits for longer: the clock of the queue runs, though no engine has anything to say.
    assert max(trip.placed_ms - trip.arrived_ms for trip in record.measured if trip.fate is Fate.SERVED) <= 401.0


@pytest.mark.parametrize("policy", [name for name, one in FLOW_POLICIES.items() if one.settings is None])
def test_what_sheds_without_a_queue_spares_what_is_critical(policy: str) -> None:
    _, record = play(policy)
    assert {trip.call.label for trip in record.measured if trip.fate is Fate.REFUSED} <= {"sheddable"}
    assert all(trip.placed_ms == trip.arrived_ms for trip in record.measured if trip.fate is not Fate.REFUSED)
