"""Readings → figures: idle cost taken off, slope of memory, segments joined."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from poolpilot_lab.bench.cost import measure
from poolpilot_lab.bench.cost.measure import Reading, between, joined, per_request_us, shares, slope
from poolpilot_lab.bench.cost.tools import LoadResult, Quantiles

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_idle_cost_is_taken_off() -> None:
    used = between(Reading(10.0, 1.0, 2.0, 100), Reading(14.0, 2.2, 4.0, 180))
    assert (used.seconds, used.pages) == (4.0, 80)
    assert used.picker_cores == pytest.approx(0.3)
    assert per_request_us(0.1, used.picker_s, used.seconds, 1000) == pytest.approx(800.0)
    assert per_request_us(0.1, used.picker_s, used.seconds, 0) is None


def test_the_slope_is_that_of_the_second_half() -> None:
    growing = [(1000 * step, 50_000_000 + 10_000 * step) for step in range(1, 11)]
    assert slope(growing) == pytest.approx(10.0)
    warm_up_first = [(1000 * step, 90_000_000 * step if step < 6 else 500_000_000) for step in range(1, 11)]
    assert slope(warm_up_first) == pytest.approx(0.0)


def test_too_few_points_have_no_slope() -> None:
    assert slope([(1000, 5)]) is None
    assert slope([(1000, 5), (2000, 6), (3000, 7)]) is None
    assert slope([(0, 5)] * 10) is None, "no request was answered"


def test_segments_are_joined() -> None:
    def segment(count: int, p50: float, reasons: dict[str, int]) -> LoadResult:
        latency = Quantiles(p50=p50, p90=p50, p99=p50 * 10, p999=0.0, max=0.0)
        return LoadResult(
            count=count, errors=sum(reasons.values()), reasons=reasons, seconds=2.0, chunks=1, latency_ms=latency,
            first_byte_ms=latency, late_p99_ms=p50, connections=3,
        )  # fmt: skip

    whole = joined([segment(10, 1.0, {"a": 1}), segment(20, 3.0, {"a": 1, "b": 2}), segment(30, 2.0, {})])
    assert (whole.count, whole.errors, whole.reasons, whole.seconds) == (60, 4, {"a": 2, "b": 2}, 6.0)
    assert (whole.latency_ms.p50, whole.latency_ms.p99, whole.late_p99_ms) == (2.0, 20.0, 3.0)


def test_shares_of_workers() -> None:
    assert shares({"0": 10.0, "1": 5.0}, {"0": 40.0, "1": 75.0}) == pytest.approx((0.3, 0.7))
    assert shares({}, {"0": 1.0, "1": 1.0}) == (0.5, 0.5)
    assert shares({"0": 3.0}, {"0": 3.0}) == ()
    assert shares({}, {}) == ()


async def test_workers_are_asked_for_their_streams_outside_of_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is work, and a picker that is one process has none of it."""
    did: list[str] = []

    def step(name: str, result: Any) -> Callable[..., Any]:
        async def done(*_: Any) -> Any:
            did.append(name)
            return result

        return done

    monkeypatch.setattr(measure, "read", step("read", Reading(1.0, 1.0, 1.0, 1)))
    monkeypatch.setattr(measure, "between", lambda *_: None)
    monkeypatch.setattr(measure, "row", lambda *_: None)
    monkeypatch.setattr(measure, "_streams", step("streams", {"0": 1.0}))
    monkeypatch.setattr(measure, "_play", step("load", (None, [])))
    monkeypatch.setattr(measure, "SETTLE_S", 0.0)
    entry: Any = SimpleNamespace(
        awake=contextlib.nullcontext, servers=SimpleNamespace(shape=step("shape", None)), picker=None
    )
    trial: Any = SimpleNamespace(warm=None, idle_s=0.0, load=object(), probes=0)
    generator: Any = None
    await measure.run_once(trial, entry, generator, 1)
    assert did == ["shape", "streams", "read", "read", "load", "read", "streams"]
