"""What four pickers tell each other is what it says, and nothing else."""

from __future__ import annotations

from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.scenarios import VARIANTS
from poolpilot_lab.sim.variants import SHARING
from poolpilot_picker.state import homes


def play(scenario_name, policy, rate, count):
    scenario = VARIANTS[scenario_name]
    world = SHARING[policy].world(scenario.world())
    router = make_router(policy, scenario.world(), 1)
    return router, Simulation(world, scenario.traffic(rate, count, 1), router, 1, 0.3).run()


def test_pickers_have_as_many_pools_as_accounts() -> None:
    counts = {}
    for policy in SHARING:
        router, record = play("S8-4-5000", policy, 20.0, 60)
        counts[policy] = len(set(map(id, router.pools)))
        assert all(trip.end_ms < float("inf") for trip in record.trips)
        assert all(pool.table.requests.sum() == 0 for pool in router.pools), "every booking was released"
    assert counts == {
        "poolpilot": 4,
        "poolpilot+shared-bookings": 1,
        "poolpilot+shared-events": 4,
        "poolpilot+shared-residency": 4,
        "poolpilot+shared-all": 1,
    }


def test_with_events_pickers_find_what_the_others_cached() -> None:
    cached = {}
    for policy in ("poolpilot", "poolpilot+shared-bookings", "poolpilot+shared-events"):
        _, record = play("S1-4-5000", policy, 9.0, 500)
        cached[policy] = sum(trip.cached_tokens for trip in record.measured)
    assert cached["poolpilot+shared-events"] > 1.1 * cached["poolpilot"]
    assert cached["poolpilot+shared-events"] > 1.1 * cached["poolpilot+shared-bookings"]


def test_pickers_that_tell_each_other_nothing_have_the_same_homes_for_prompts(monkeypatch) -> None:
    def found():
        _, record = play("S1-4-5000", "poolpilot", 9.0, 500)
        return sum(trip.cached_tokens for trip in record.measured)

    with_homes = found()
    monkeypatch.setattr(homes, "LEAST_OTHERS", 2.0)
    assert with_homes > 1.3 * found()
