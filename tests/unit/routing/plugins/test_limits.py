"""Filters by limits: any metric, unknown ones, and the detectors of llm-d as filters."""

from __future__ import annotations

import numpy as np
import pytest

from poolpilot_picker.routing.plugins.limits import (
    ConcurrencyDetectorFilter,
    ConcurrencyDetectorParameters,
    Condition,
    UtilizationDetectorFilter,
    UtilizationDetectorParameters,
    UtilizationFilter,
    UtilizationParameters,
)
from view_builder import make_table, make_view


def kept(plugin, table):
    """Slots that stay."""
    return plugin.filter(make_view(table)).nonzero()[0].tolist()


def utilization(*conditions, fallback=False):
    """A filter with these limits."""
    return UtilizationFilter(UtilizationParameters(conditions=conditions, fallback_on_empty=fallback))


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("active-requests", "requests"),
        ("running-requests", "running"),
        ("waiting-queue", "waiting"),
        ("kv-cache-utilization", "kv_usage"),
    ],
)
def test_drops_what_is_above_a_limit(metric, column):
    table = make_table(3, **{column: [0.2, 0.5, 0.9]})
    assert kept(utilization(Condition(metric, 0.5)), table) == [0, 1]


def test_any_broken_condition_drops():
    table = make_table(3, waiting=[9, 0, 0], kv_usage=[0.1, 0.95, 0.1])
    assert kept(utilization(Condition("waiting-queue", 5), Condition("kv-cache-utilization", 0.9)), table) == [2]


def test_unknown_is_not_above():
    table = make_table(3, kv_usage=[0.99, np.nan, 0.1])
    assert kept(utilization(Condition("kv-cache-utilization", 0.5)), table) == [1, 2]
    assert kept(utilization(Condition("kv-cache-utilization", 0.5)), make_table(3, sampled=False)) == [0, 1, 2]


def test_fallback_when_all_are_above():
    table = make_table(2, waiting=[9, 9])
    assert kept(utilization(Condition("waiting-queue", 5)), table) == []
    assert kept(utilization(Condition("waiting-queue", 5), fallback=True), table) == [0, 1]


def test_no_condition_keeps_all():
    assert kept(UtilizationFilter(), make_table(2)) == [0, 1]


def test_utilization_detector_keeps_what_is_below_both_thresholds():
    table = make_table(4, waiting=[4, 5, 0, 0], kv_usage=[0.7, 0.1, 0.8, 0.0])
    table.sample_ms[3] = -np.inf
    assert kept(UtilizationDetectorFilter(), table) == [0]
    assert kept(UtilizationDetectorFilter(UtilizationDetectorParameters(headroom=0.1)), table) == [0, 1, 2]
    assert kept(UtilizationDetectorFilter(UtilizationDetectorParameters(staleness_policy="ignore")), table) == [0, 3]


def test_utilization_detector_keeps_all_when_all_are_full_or_unknown():
    assert kept(UtilizationDetectorFilter(), make_table(2, waiting=[6, 7])) == [0, 1]
    assert kept(UtilizationDetectorFilter(), make_table(2, sampled=False)) == [0, 1]


@pytest.mark.parametrize(("mode", "expected"), [("requests", [0, 2]), ("tokens", [0, 1]), ("hybrid", [0])])
def test_concurrency_detector(mode, expected):
    table = make_table(4)
    table.requests[:] = [9, 10, 0, 11]
    table.uncached_tokens[:] = [99, 0, 100, 101]
    parameters = ConcurrencyDetectorParameters(max_concurrency=10, max_token_concurrency=100, concurrency_mode=mode)
    assert kept(ConcurrencyDetectorFilter(parameters), table) == expected


def test_concurrency_detector_may_keep_none():
    table = make_table(2)
    table.requests[:] = 100
    assert kept(ConcurrencyDetectorFilter(), table) == []
    assert kept(ConcurrencyDetectorFilter(ConcurrencyDetectorParameters(headroom=0.01)), table) == [0, 1]
