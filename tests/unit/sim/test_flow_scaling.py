"""The autoscaler has the HPA's formula; a pool that follows the picker's signal grows while engines do not queue."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from poolpilot_lab.sim.flow_autoscaler import Autoscaler, Scaling, Signal, recommended
from poolpilot_lab.sim.flow_policies import FLOW
from poolpilot_lab.sim.flow_scaled import ScaledSimulation
from poolpilot_lab.sim.flow_scenarios import CHAT, FLOW_SCENARIOS, SCALE_OUT
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.trip import POOLPILOT, Fate
from poolpilot_lab.workload import contention

SCALING = Scaling(first=2, goal=4, since_ms=0.0)


def queue(value: float) -> Signal:
    return Signal(value, 4.0, average=True)


def saturation(value: float) -> Signal:
    return Signal(value, 0.7, average=False)


@pytest.mark.parametrize(
    ("signal", "pods"),
    [
        (queue(0.0), 0),
        (queue(16.0), 4),
        (queue(17.5), 4),
        (queue(17.7), 5),
        (queue(40.0), 10),
        (queue(14.4), 4),
        (queue(12.0), 3),
        (saturation(0.77), 4),
        (saturation(0.78), 4),
        (saturation(1.0), 5),
        (saturation(0.1), 1),
    ],
)
def test_a_recommendation_is_the_ratio_to_the_target_rounded_up_unless_it_is_near(signal: Signal, pods: int) -> None:
    assert recommended(signal, 4, 3) == pods


def test_the_larger_recommendation_counts_within_the_pods_there_may_be_and_what_a_minute_allows() -> None:
    scaler = Autoscaler(SCALING, 12)
    assert scaler.decide([queue(8.0), saturation(1.0)], 2, 2, 0.0) == 3
    assert scaler.decide([queue(900.0)], 3, 2, 15_000.0) == 6, "four in a minute"
    assert scaler.decide([queue(900.0)], 6, 2, 45_000.0) == 6
    assert scaler.decide([queue(900.0)], 6, 6, 60_000.0) == 7, "the first one is a minute old"
    assert scaler.decide([queue(900.0)], 11, 11, 600_000.0) == 12


def test_pods_go_one_by_one_and_only_when_none_was_wanted_for_ten_minutes() -> None:
    scaler = Autoscaler(SCALING, 12)
    assert scaler.decide([queue(0.0)], 4, 4, 0.0) == 4, "of the time before nothing is known"
    assert scaler.decide([queue(0.0)], 4, 4, 599_000.0) == 4
    assert scaler.decide([queue(0.0)], 4, 4, 601_000.0) == 3
    assert scaler.decide([queue(0.0)], 3, 3, 700_000.0) == 3
    assert scaler.decide([queue(0.0)], 3, 3, 722_000.0) == 2
    assert scaler.decide([], 2, 2, 900_000.0) == 2


def test_arrivals_of_a_ramp_are_those_of_its_rates() -> None:
    calls = contention.ramp(10.0, 4_000, 1, low=0.5, high=2.0, begin_s=30.0, ramp_s=40.0, settled_s=90.0).calls
    times = [call.at_ms / 1000.0 for call in calls]
    assert times == sorted(times)

    def rate(begin: float, end: float) -> float:
        return sum(begin <= at < end for at in times) / (end - begin)

    assert rate(0.0, 30.0) == pytest.approx(5.0, rel=0.25)
    assert rate(30.0, 70.0) == pytest.approx(12.5, rel=0.15)
    assert rate(40.0, 50.0) == pytest.approx(5.0 + 15.0 * 15.0 / 40.0, rel=0.25)
    assert rate(70.0, 200.0) == pytest.approx(20.0, rel=0.1)
    assert {call.label for call in calls if call.at_ms < 30_000.0} == {"before"}
    assert {call.label for call in calls if call.at_ms >= 90_000.0} == {"settled"}


def test_the_rate_of_the_scenario_is_that_of_its_first_endpoints() -> None:
    assert FLOW_SCENARIOS[SCALE_OUT].steady_world() == FLOW_SCENARIOS[CHAT].steady_world()


def test_a_pool_follows_the_pickers_signal_while_its_engines_do_not_queue() -> None:
    scenario = FLOW_SCENARIOS[SCALE_OUT]
    scaling = Scaling(first=1, goal=2, since_ms=5_000.0, start_ms=8_000.0, sync_ms=4_000.0, scrape_ms=2_000.0)
    world = replace(scenario.world(), fleet=scenario.fleet[:3], scaling=scaling)
    traffic = contention.ramp(26.0, 1_600, 1, begin_s=5.0, ramp_s=10.0, settled_s=30.0)
    told = {}
    for policy in (FLOW, POOLPILOT):
        simulation = ScaledSimulation(world, traffic, make_router(policy, world, 1), 1, 0.05)
        record = simulation.run()
        assert all(trip.fate is Fate.SERVED for trip in record.measured)
        told[policy] = simulation.figures
    mine, other = told[FLOW], told[POOLPILOT]
    assert mine["scaled_s"] <= other["scaled_s"] < math.inf
    assert mine["engine_waiting_mean"] < 2.0 < 0.2 * other["engine_waiting_mean"]
    assert [count for _, count in mine["endpoints"]] == [1, 2, 3]
    late, early = mine["endpoints"][1][0], mine["endpoints"][0][0]
    assert late - early >= 8.0, "an endpoint starts late"
