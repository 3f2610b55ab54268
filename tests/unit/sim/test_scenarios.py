"""Every scenario runs, small, under ours and a baseline; what belongs to it shows."""

import math

import pytest

from poolpilot_lab.bench.routing.sets import TABLES
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.limits import limits
from poolpilot_lab.sim.measures import details, row
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.scenarios import KNOWN, SCENARIOS
from poolpilot_lab.sim.trip import Fate
from poolpilot_lab.sim.world import IDENTICAL


def play(name, policy, *, load=0.5, requests=200, seed=1, **world):
    scenario = KNOWN[name]
    traffic = scenario.traffic(scenario.guess * load, requests, seed)
    made = scenario.world(**world)
    record = Simulation(made, traffic, make_router(policy, made, seed), seed, scenario.warm_share).run()
    return scenario, record, limits(record, made, seed)


@pytest.mark.parametrize("policy", ["poolpilot", "least-request"])
@pytest.mark.parametrize("name", KNOWN)
def test_every_scenario_runs_and_its_figures_are_there(name, policy):
    scenario, record, bound = play(name, policy)
    made = row(record, scenario.slo, bound)
    more = details(record, scenario.slo, bound)
    stayed = [trip for trip in record.measured if trip.call.patience_ms == math.inf]
    assert made["requests"] == len(stayed) > 0
    assert made["admitted"] == 1.0
    assert made["starved"] == 0
    assert made["limit_ttft_mean_ms"] <= made["ttft_mean_ms"]
    if "S11" not in name and name != "harm-fast-failing":
        assert all(trip.fate is Fate.SERVED for trip in stayed)
        assert math.isfinite(more["e2e_mean_ms"])
    assert 0.0 <= made["cached_token_share"] <= made["reuse_ceiling"] + 1e-9 <= 1.0


def test_equal_seeds_make_equal_traffic_and_others_other():
    for scenario in KNOWN.values():
        one, two, other = (scenario.traffic(scenario.guess, 60, seed) for seed in (1, 1, 2))
        assert [(c.at_ms, c.prompt_tokens, c.output_tokens, list(c.blocks)) for c in one] == [
            (c.at_ms, c.prompt_tokens, c.output_tokens, list(c.blocks)) for c in two
        ]
        if scenario.name != "uniform":
            assert [c.at_ms for c in one.calls] != [c.at_ms for c in other.calls]


@pytest.mark.parametrize("name", KNOWN)
def test_traffic_has_the_asked_number_and_about_the_asked_rate(name):
    scenario = KNOWN[name]
    traffic = scenario.traffic(scenario.guess, 1_200, 3)
    assert traffic.count == pytest.approx(1_200, rel=0.02)
    seconds = max(call.at_ms for call in traffic.calls) / 1000.0
    asked = scenario.guess * (0.5 if name == "scale-out" else 1.0)  # its rate grows later
    assert traffic.count / seconds == pytest.approx(asked, rel=0.25 if name != "S9" else 0.6)
    for call in traffic:
        assert len(call.blocks) <= (call.prompt_tokens + call.output_tokens) // traffic.block_tokens


def test_a_key_of_a_scenario_changes_with_what_defines_it():
    keys = {scenario.key for scenario in KNOWN.values()}
    assert len(keys) == len(KNOWN)
    assert SCENARIOS["S1"].with_endpoints(4).key not in keys
    assert " at 0x" not in "".join(keys)


def test_where_service_times_ignore_load_no_balancer_can_differ():
    means = {}
    for policy in ("random", "round-robin", "least-request", "lmetric", "poolpilot"):
        _, record, _ = play("poisson-mix-naive", policy, requests=600, variation=IDENTICAL.__class__())
        means[policy] = sum(trip.e2e_ms for trip in record.measured) / len(record.measured)
    assert max(means.values()) / min(means.values()) < 1.01


def test_four_pickers_are_four_and_read_seldom():
    _, record, _ = play("S12", "poolpilot")
    assert {trip.picker for trip in record.trips} == {0, 1, 2, 3}


def test_adapters_are_loaded_and_waited_for():
    scenario, record, bound = play("S8", "least-request", load=0.8, requests=600)
    made = row(record, scenario.slo, bound)
    assert made["adapter_loads"] > 10
    assert made["adapter_wait_p99_ms"] >= 500.0


def test_a_pod_that_fails_fast_does_not_get_everything():
    shares = {}
    for policy in ("poolpilot", "least-request"):
        _, record, _ = play("S11-fail", policy, load=0.7, requests=2_000)
        shares[policy] = sum(trip.fate is Fate.FAILED for trip in record.trips) / len(record.trips)
    assert shares["least-request"] > 0.1
    assert shares["poolpilot"] < 0.02


@pytest.mark.parametrize("name", [one for table in ("slowed", "fail", "kill") for one in TABLES[table].scenarios or ()])
def test_there_is_a_before_where_a_before_and_after_are_compared(name):
    """Of what belongs to the warm-up nothing is known: a change at its end can never be said to have been seen."""
    scenario = KNOWN[name]
    assert min(change.at_share for change in scenario.changes) >= scenario.warm_share + 0.1
