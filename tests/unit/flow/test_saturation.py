"""Saturation of a pool, the ceilings of priorities, and what is shed."""

from __future__ import annotations

from typing import Any

import pytest

from flow_stage import Stage, refusal
from poolpilot_picker.config.flow_plugins import HoldbackParameters, ProbabilisticParameters, ReflectiveParameters
from poolpilot_picker.flow.admission import LatencySloAdmitter, ProbabilisticAdmitter
from poolpilot_picker.flow.holding import Ticket
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.flow.saturation import ConcurrencyDetector, Gate, UtilizationDetector
from poolpilot_picker.routing.plugins.limits import ConcurrencyDetectorParameters, UtilizationDetectorParameters
from poolpilot_picker.state.samples import EngineSample


def sampled(stage: Stage, *, waiting: float, kv: float) -> None:
    for endpoint in list(stage.pool.table):
        sample = EngineSample(taken_ms=stage.now, running=3.0, waiting=waiting, kv_usage=kv)
        stage.pool.apply_sample(endpoint, sample, stage.now)


def test_the_utilization_detector_has_llm_ds_formula():
    stage = Stage()
    detector = UtilizationDetector(UtilizationDetectorParameters())
    assert detector(stage.pool, stage.now) == 0.0, "not heard from, and nothing of ours there"
    stage.go()
    assert detector(stage.pool, stage.now) == 0.5, "not heard from counts as full where we have placed something"
    sampled(stage, waiting=2.0, kv=0.2)
    assert detector(stage.pool, stage.now) == pytest.approx(0.4)
    sampled(stage, waiting=2.0, kv=0.6)
    assert detector(stage.pool, stage.now) == pytest.approx(0.75)
    assert detector(Stage(()).pool, 0.0) == 1.0


@pytest.mark.parametrize(("mode", "expected"), [("requests", 0.5), ("tokens", 0.35), ("hybrid", 0.675)])
def test_the_concurrency_detector_has_llm_ds_formula(mode: Any, expected: float):
    stage = Stage(room=RoomSettings())
    stage.pool.table.requests[:] = [3.0, 1.0]
    stage.pool.table.uncached_tokens[:] = [10.0, 60.0]
    parameters = ConcurrencyDetectorParameters(max_concurrency=4.0, max_token_concurrency=100.0, concurrency_mode=mode)
    assert ConcurrencyDetector(parameters)(stage.pool, stage.now) == pytest.approx(expected)


def test_a_saturated_pool_dispatches_nothing_below_its_ceiling():
    detector = ConcurrencyDetector(ConcurrencyDetectorParameters(max_concurrency=2.0))
    stage = Stage(detector=detector, ceiling=HoldbackParameters(min_ceiling=0.5), room=RoomSettings())
    stage.flow.queue.band(5)
    first = stage.go(priority=5)
    second = stage.go(priority=5)
    low, ticket = stage.submit(priority=0)
    assert first.placement and second.placement
    assert isinstance(ticket, Ticket) and ticket.why == "the pool is saturated"
    high = stage.go(priority=5)
    stage.advance()
    assert high.placement is not None and low.placement is None
    stage.finish(first)
    stage.finish(second)
    stage.advance()
    assert low.placement is not None


def test_soft_reflective_ceilings_let_some_through():
    gate = Gate(lambda pool, now: 0.0, ReflectiveParameters())
    assert gate.open(0, [1, 0], 0.49) and not gate.open(0, [1, 0], 0.75)
    passed = [gate.open(0, [1, 0], 0.75) for _ in range(9)]
    assert sum(passed) == 3, "one of round(0.75 / 0.25)"
    assert gate.open(1, [1, 0], 0.99) and not gate.open(1, [1, 0], 1.0)
    assert not any(gate.open(0, [1, 0], 1.0) for _ in range(50))


def test_sheddable_requests_are_shed_with_the_admitters_probability():
    draws = iter((0.20, 0.29))
    admitter = ProbabilisticAdmitter(ProbabilisticParameters(), lambda: next(draws))
    stage = Stage(admitters=(admitter,), room=RoomSettings())
    sampled(stage, waiting=1.23, kv=0.0)  # (1.23 / 5)^5 × 300 = 0.270
    refused = refusal(stage, priority=-1)
    assert refused.message == "system saturated, sheddable request dropped"
    assert refused.dropped_reason == "rejected-saturated"
    assert stage.go(priority=-1).placement
    assert stage.go(priority=0).placement, "nothing is drawn for what is not sheddable"


def test_the_slo_admitter_sheds_what_cannot_be_in_time():
    stage = Stage(predicts=True, admitters=(LatencySloAdmitter(),), room=RoomSettings(start_within_ms=1e9))
    assert stage.go(priority=-1, slo_ttft_ms=1e-6).placement, "an idle endpoint admits"
    for _ in range(4):
        stage.go(tokens=20_000)
    assert refusal(stage, priority=-1, slo_ttft_ms=50.0).status == 429
    assert stage.go(priority=-1, slo_ttft_ms=1e9).placement
    assert stage.go(priority=-1).placement
    assert stage.go(priority=0, slo_ttft_ms=50.0).placement


def test_sheddable_requests_may_be_dropped_instead_of_held():
    detector = ConcurrencyDetector(ConcurrencyDetectorParameters(max_concurrency=1.0))
    stage = Stage(detector=detector, drop_sheddable=True)
    stage.go(), stage.go()
    assert refusal(stage, priority=-1).dropped_reason == "rejected-saturated"
    assert stage.go().refused is None
