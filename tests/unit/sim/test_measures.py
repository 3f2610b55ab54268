"""Figures of hand-made trips: percentiles with infinite latencies, goodput, starvation, service gaps."""

import math

import pytest

from poolpilot_lab.sim.fleet import Record
from poolpilot_lab.sim.limits import Limits
from poolpilot_lab.sim.measures import details, fairness_gap, quantile, row
from poolpilot_lab.sim.trip import Fate, Trip
from poolpilot_lab.sim.world import Slo
from poolpilot_lab.workload.calls import Call


def trip(arrived, ttft=math.inf, tpot=10.0, output=101, *, fate=Fate.SERVED, **call):
    made = Trip(Call(arrived, 1_000, output, **call), 0, arrived, fate=fate)
    if fate is Fate.SERVED:
        made.first_ms = arrived + ttft
        made.end_ms = made.first_ms + tpot * (output - 1)
    return made


def record(trips):
    return Record(trips, trips, 0.0, 10_000.0, output_tokens=500)


def bounds(trips, alone=100.0):
    return Limits(0.5, [alone] * len(trips), 50.0, 80.0)


def test_quantiles_take_the_value_that_enough_do_not_exceed():
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0] * 99 + [math.inf], 0.99) == 1.0
    assert quantile([1.0] * 98 + [math.inf] * 2, 0.99) == math.inf
    assert math.isnan(quantile([], 0.5))


def test_a_row_counts_refused_requests_as_infinitely_late_and_not_admitted():
    trips = [trip(0.0, 100.0), trip(1.0, 300.0), trip(2.0, fate=Fate.REFUSED), trip(3.0, 200.0, tpot=60.0)]
    made = row(record(trips), Slo(2_000.0, 50.0), bounds(trips))
    assert made["requests"] == 4
    assert made["admitted"] == 0.75
    assert made["ttft_mean_ms"] == math.inf
    assert made["ttft_p50_ms"] == 200.0
    assert made["ttft_p99_ms"] == made["e2e_p99_ms"] == made["tpot_p99_ms"] == math.inf
    # Two of four within both targets, over ten seconds of arrivals.
    assert made["goodput_rps"] == pytest.approx(0.2)
    assert made["output_tok_s"] == pytest.approx(50.0)
    assert made["limit_ttft_mean_ms"] == 50.0
    assert "by_class" not in made and "by_tenant" not in made


def test_classes_and_tenants_have_figures_of_their_own():
    trips = [trip(0.0, 100.0, label="a", tenant="x"), trip(1.0, 900.0, label="b", tenant="x")]
    made = row(record(trips), Slo(2_000.0, 50.0, {"b": (500.0, 50.0)}), bounds(trips))
    assert made["by_class"]["a"]["ttft_p99_ms"] == 100.0
    assert made["by_class"]["b"]["ttft_p99_ms"] == 900.0
    assert made["by_tenant"]["x"]["ttft_p99_ms"] == 900.0
    assert details(record(trips), Slo(2_000.0, 50.0, {"b": (500.0, 50.0)}), bounds(trips))["good_share"] == 0.5


@pytest.mark.parametrize(
    ("ttft", "alone", "starved"),
    [(30_050.0, 100.0, 0), (30_200.0, 100.0, 1), (60_000.0, 8_000.0, 0), (math.inf, 8_000.0, 1)],
)
def test_starved_is_who_waits_long_and_ten_times_what_it_needs(ttft, alone, starved):
    fate = Fate.OPEN if math.isinf(ttft) else Fate.SERVED
    trips = [trip(0.0, ttft, fate=fate)]
    assert row(record(trips), Slo(), bounds(trips, alone))["starved"] == starved


def test_answers_of_a_few_tokens_say_nothing_of_the_time_between_tokens():
    trips = [trip(0.0, 100.0, tpot=10.0), trip(1.0, 100.0, tpot=900.0, output=5)]
    made = row(record(trips), Slo(), bounds(trips))
    assert made["tpot_p99_ms"] == pytest.approx(10.0)
    assert made["goodput_rps"] == pytest.approx(0.2)


def test_the_service_gap_is_between_tenants_that_both_wait():
    # Both have a request waiting from 0 to 60 s; meanwhile ten requests of one are served.
    trips = [trip(0.0, 60_000.0, tenant="one"), trip(0.0, 60_000.0, tenant="two")]
    trips += [trip(1_000.0, 1_000.0 * number, tenant="one") for number in range(1, 11)]
    trips.append(trip(50_000.0, 1.0, tenant="two"))
    served = 10 * (1_000 + 2 * 101) - (1_000 + 2 * 101)
    assert fairness_gap(trips) == pytest.approx(10 * 1_202, abs=1_203)
    assert fairness_gap(trips) >= served
    assert fairness_gap([t for t in trips if t.call.tenant == "one"]) == 0.0
