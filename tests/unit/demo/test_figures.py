"""Percentiles and figures: known values, failures counted as for ever, and the exact shape of demo.json."""

import dataclasses
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_lab.client.load import Outcome
from poolpilot_lab.demo.figures import Counters, DemoFigures, Endpoint, Percentiles, percentiles, policy_figures

GOOD = Outcome(
    session=0,
    turn=0,
    kind="chat",
    model="base",
    sent_ms=0.0,
    end_ms=500.0,
    ttft_ms=100.0,
    tpot_ms=10.0,
    prompt_tokens=50,
    cached_tokens=16,
    output_tokens=40,
    endpoint="e1",
)
ENDPOINTS = [Endpoint("e1", "127.0.0.1:1", "fast"), Endpoint("e2", "127.0.0.1:2", "slow")]
COUNTERS = {"e1": Counters(3, 1, 100, 40), "e2": Counters(4, 0, 100, 10)}


def outcome(**changes: Any) -> Outcome:
    return dataclasses.replace(GOOD, **changes)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles(float(value) for value in range(1, 101)) == Percentiles(50.0, 95.0, 99.0)
    assert percentiles([7.0]) == Percentiles(7.0, 7.0, 7.0)
    assert percentiles([1.0, 9.0]) == Percentiles(1.0, 9.0, 9.0)


def test_percentiles_of_nothing_are_missing_not_zero() -> None:
    assert percentiles([]) == Percentiles(None, None, None)


def test_a_percentile_that_falls_on_a_failure_is_missing() -> None:
    assert percentiles([1.0] * 90 + [math.inf] * 10) == Percentiles(1.0, None, None)


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=200))
def test_percentiles_cover_their_share_and_not_much_more(values: list[float]) -> None:
    found = percentiles(values)
    for share, value in ((0.50, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert value is not None
        assert sum(one <= value + 0.001 for one in values) >= share * len(values)
        assert sum(one < value - 0.001 for one in values) < share * len(values)


def test_figures_of_a_run() -> None:
    outcomes = [outcome(), outcome(sent_ms=1000.0, end_ms=2000.0, endpoint="e2", ttft_ms=300.0, tpot_ms=None)]
    figures = policy_figures(outcomes, ENDPOINTS, COUNTERS)
    assert (figures.requests, figures.errors) == (2, 0)
    assert figures.ttft_ms == Percentiles(100.0, 300.0, 300.0)
    assert figures.e2e_ms == Percentiles(500.0, 1000.0, 1000.0)
    assert figures.tpot_ms == Percentiles(10.0, 10.0, 10.0), "an answer of one token has no time between tokens"
    assert figures.requests_per_s == 1.0, "two answers between second 0 and second 2"
    assert figures.cached_token_share == 0.25
    assert (figures.adapter_loads, figures.preemptions) == (7, 1)
    first, second = figures.endpoints
    assert (first.address, first.profile, first.requests, first.requests_per_s) == ("127.0.0.1:1", "fast", 1, 0.5)
    assert (second.cached_token_share, second.adapter_loads, second.ttft_ms.p50) == (0.1, 4, 300.0)


def test_failures_count_as_for_ever_and_not_as_throughput() -> None:
    lost = outcome(error="status 503", endpoint="", ttft_ms=0.0, tpot_ms=None, sent_ms=10.0, end_ms=20.0)
    figures = policy_figures([outcome(), lost], ENDPOINTS, COUNTERS)
    assert (figures.requests, figures.errors, figures.requests_per_s) == (2, 1, 2.0)
    assert figures.ttft_ms == Percentiles(100.0, None, None)
    assert figures.tpot_ms == Percentiles(10.0, None, None)
    assert figures.e2e_ms == Percentiles(500.0, None, None)
    assert sum(endpoint.requests for endpoint in figures.endpoints) == 1, "nobody is blamed for what nobody answered"


def test_an_idle_endpoint_has_no_percentiles() -> None:
    idle = policy_figures([outcome()], ENDPOINTS, {"e1": COUNTERS["e1"], "e2": Counters()}).endpoints[1]
    assert (idle.requests, idle.ttft_ms, idle.cached_token_share) == (0, Percentiles(None, None, None), 0.0)


def test_a_run_without_any_answer() -> None:
    lost = outcome(error="never sent", endpoint="", sent_ms=0.0, end_ms=0.0)
    figures = policy_figures([lost], ENDPOINTS, {name: Counters() for name in COUNTERS})
    assert (figures.requests, figures.errors, figures.requests_per_s) == (1, 1, 0.0)


FIELDS = [
    "requests", "errors", "ttft_ms", "tpot_ms", "e2e_ms", "requests_per_s",
    "cached_token_share", "adapter_loads", "preemptions",
]  # fmt: skip


@pytest.mark.parametrize("policy", ["round-robin", "least-request", "poolpilot"])
def test_the_shape_of_demo_json(policy: str) -> None:
    run = policy_figures([outcome()], ENDPOINTS, COUNTERS)
    figures = DemoFigures(7, dict.fromkeys(("round-robin", "least-request", "poolpilot"), run))
    read = json.loads(msgspec.json.encode(figures))
    assert list(read) == ["seed", "policies"]
    assert read["seed"] == 7
    assert list(read["policies"]) == ["round-robin", "least-request", "poolpilot"]
    assert list(read["policies"][policy]) == [*FIELDS, "endpoints"]
    for endpoint in read["policies"][policy]["endpoints"]:
        assert list(endpoint) == [*FIELDS, "address", "profile"]
    assert list(read["policies"][policy]["ttft_ms"]) == ["p50", "p95", "p99"]
    assert figures.errors == 0
