"""Metrics: label caps that no client can break through, cached children, and names that dashboards know."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from poolpilot_picker.instruments.metrics import LABEL_LENGTH, LABEL_SETS, LABEL_VALUES, LabelCap, PickerMetrics, SetCap


@pytest.fixture
def metrics() -> PickerMetrics:
    return PickerMetrics(CollectorRegistry())


def series(metrics: PickerMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Label values of a sample's series, in the order of their names, with their values."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_a_label_keeps_its_first_values() -> None:
    cap = LabelCap(2)
    assert [cap(value) for value in ("a", "b", "c", "a", "d", "b")] == ["a", "b", "other", "a", "other", "b"]


def test_a_label_value_is_cut() -> None:
    assert LabelCap()("x" * 10_000) == "x" * LABEL_LENGTH


def test_combinations_are_capped() -> None:
    cap = SetCap(2)
    other = ("other", "other")
    assert [cap((a, a), other) for a in "abcab"] == [("a", "a"), ("b", "b"), other, ("a", "a"), ("b", "b")]


def test_clients_cannot_grow_the_page(metrics: PickerMetrics) -> None:
    """Each model name, and each of its combinations with a tenant, is the client's choice."""
    for number in range(3 * LABEL_VALUES):
        metrics.request(f"model-{number}", f"model-{number}", f"tenant-{number % 700}", 0).total.inc()
    for number in range(2_000):
        metrics.request("model-1", "model-1", f"tenant-{number % 1_000}", 0).total.inc()
        metrics.error("model-1", "model-1", f"tenant-{number}", 0, "BadRequest")
        metrics.picked(f"model-{number}", "10.0.0.1", 8000)
        metrics.not_picked(f"model-{number}")
    totals = series(metrics, "llm_d_epp_request_total")
    assert len(totals) == LABEL_SETS + 1
    assert sum(totals.values()) == 3 * LABEL_VALUES + 2_000, "nothing is lost, only joined"
    assert totals["other", "other", "0", "other"] > 0
    assert len(series(metrics, "llm_d_epp_request_error_total")) <= LABEL_SETS + 1
    assert len(series(metrics, "llm_d_epp_scheduler_attempts_total")) <= 2 * (LABEL_VALUES + 1)


def test_children_are_kept(metrics: PickerMetrics) -> None:
    assert metrics.request("m", "t", "x", 1) is metrics.request("m", "t", "x", 1)
    assert metrics.request("m", "t", "x", 1) is not metrics.request("m", "t", "x", 2)


def test_endpoints_of_one_name_differ_by_port(metrics: PickerMetrics) -> None:
    for port in (8000, 8000, 8001):
        metrics.picked("m", "pod-a", port)
    attempts = series(metrics, "llm_d_epp_scheduler_attempts_total")
    assert attempts == {("pod-a", "", "8000", "success", "m"): 2, ("pod-a", "", "8001", "success", "m"): 1}


def test_outcomes(metrics: PickerMetrics) -> None:
    for outcome in ("served", "served", "failed"):
        metrics.ended("pool", outcome)
    assert series(metrics, "poolpilot_exchanges_total") == {("served", "pool"): 2, ("failed", "pool"): 1}


NAMES = {
    "llm_d_epp_request",
    "llm_d_epp_request_error",
    "llm_d_epp_request_duration_seconds",
    "llm_d_epp_request_size_bytes",
    "llm_d_epp_request_input_tokens",
    "llm_d_epp_request_cached_tokens",
    "llm_d_epp_request_output_tokens",
    "llm_d_epp_request_ttft_seconds",
    "llm_d_epp_request_running",
    "llm_d_epp_scheduler_e2e_duration_seconds",
    "llm_d_epp_scheduler_attempts",
}
BUCKETS = {
    "llm_d_epp_request_duration_seconds": ("0.005", "3600.0", 35),
    "llm_d_epp_request_size_bytes": ("64.0", "1.073741824e+09", 25),
    "llm_d_epp_request_input_tokens": ("1.0", "1.048576e+06", 19),
    "llm_d_epp_request_ttft_seconds": ("0.005", "120.0", 24),
}


def test_names_and_buckets_that_dashboards_know(metrics: PickerMetrics) -> None:
    handles = metrics.request("m", "m", "", 0)
    for histogram in (handles.duration, handles.size, handles.input_tokens, handles.cached_tokens):
        histogram.observe(1)
    metrics.first_token(handles, 1.0)
    metrics.output(handles, 1.0)
    families = {family.name: family for family in metrics.registry.collect()}
    assert families.keys() >= NAMES
    for name, (first, last, count) in BUCKETS.items():
        bounds = [sample.labels["le"] for sample in families[name].samples if sample.name.endswith("_bucket")]
        assert (bounds[0], bounds[-2], len(bounds) - 1) == (first, last, count), name
