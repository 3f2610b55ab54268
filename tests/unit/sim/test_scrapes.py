"""Readings that are made late tell what they would have told in time, and no policy decides otherwise for it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from poolpilot_lab.engine import compiled
from poolpilot_lab.sim import telemetry
from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.router import Sampling
from poolpilot_lab.sim.scenarios import KNOWN
from poolpilot_lab.sim.world import Change, World

LORA = KNOWN["S8-27-1.2-4"]


def lora_world(**more: Any) -> World:
    return World(fleet=LORA.fleet[:3], **LORA.more, **more)


def told(router: Any) -> list[tuple[Any, ...]]:
    """Everything that a router will hear of telemetry, in order."""
    heard: list[tuple[Any, ...]] = []
    tell = router.sampled

    def sampled(picker, endpoint, sample, now):
        heard.append((picker, endpoint, now, sample.taken_ms, sample.running, sample.waiting, sample.kv_usage))
        heard.append((sample.preemptions, sample.active_adapters, sample.waiting_adapters, sample.generated_tokens))
        heard.append((sample.ttft, sample.inter_token, sample.requests_succeeded))
        tell(picker, endpoint, sample, now)

    router.sampled = sampled
    return heard


def play(world: World, policy: str, sampling: Sampling, requests: int = 120) -> tuple[list[Any], list[Any]]:
    """(what became of every trip, what was heard)."""
    router: Any = make_router(policy, world, 3)
    router._sampling, router._gauges_only = sampling, sampling.latest_only
    heard = told(router)
    record = Simulation(world, LORA.traffic(9.0, requests, 3), router, 3).run()
    return [(trip.endpoint, trip.first_ms, trip.end_ms, trip.fate) for trip in record.trips], heard


def test_late_readings_tell_what_timely_ones_do():
    changes = (Change(0.2, "kill", 1, 2_000.0), Change(0.5, "slow", 0, 2.0))
    world = lora_world(changes=changes, pickers=2)
    timely, late = (play(world, "poolpilot", sampling) for sampling in (Sampling.AT_ONCE, Sampling.IN_TIME))
    assert late[0] == timely[0]
    assert late[1] == timely[1][: len(late[1])]
    assert len(late[1]) > 600


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_a_baseline_decides_alike_on_all_that_is_told_and_on_what_it_reads(name):
    everything, read = (play(lora_world(), name, sampling) for sampling in (Sampling.IN_TIME, BASELINES[name].sampling))
    assert read[0] == everything[0]


@pytest.mark.parametrize("sampling", list(Sampling))
def test_compiled_readings_are_those_of_the_reference(sampling, monkeypatch):
    assert compiled.load("_scrapes").Scrapes is not telemetry.Scrapes
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "wanted", lambda name="_engine": None)
        reference = play(lora_world(), "lora-affinity", sampling, 60)
    mine = play(lora_world(), "lora-affinity", sampling, 60)
    assert mine == reference


def test_of_gauges_only_the_last_is_told_but_no_histogram_is_left_out():
    _, everything = play(lora_world(), "lora-affinity", Sampling.IN_TIME)
    _, latest = play(lora_world(), "lora-affinity", Sampling.LATEST)
    whole = [one for one in everything if len(one) == 3 and one[0] is not None]
    assert len(latest) < len(everything)
    assert [one for one in latest if len(one) == 3 and one[0] is not None] == whole


def test_jitter_takes_one_draw_a_reading():
    draws = []
    engines: Any = lora_world().engines(1)
    rng = random.Random(1)
    made = telemetry.Scrapes(
        engines,
        [1.0] * 3,
        [True] * 3,
        [0.0, 1.0, 2.0],
        telemetry.Cadence(100.0, 50.0, 1.0),
        Sampling.IN_TIME,
        lambda: draws.append(0) or rng.random(),
    )
    made.advance(1_000.0)
    assert 24 <= len(draws) == len(made.take(2_000.0)) <= 36
    assert made.next_ms > 1_000.0
