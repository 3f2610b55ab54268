"""The whole core against engine models in simulated time: wide margins, seeded, to notice when a part stops working."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from core_pools import START, default_policy, make_pool
from fleet_sim import Fleet, Job, make_engine, mean, poisson, quantile
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.plugins.pickers import LeastRequestPicker, RoundRobinPicker
from poolpilot_picker.state.samples import ServedModels


def policy(name):
    match name:
        case "ours":
            return default_policy()
        case "round robin":
            return Profile(name, picker=(name, RoundRobinPicker()))
        case "least request":
            return Profile(name, picker=(name, LeastRequestPicker()))
    raise AssertionError(name)


def fleet(name, seed, *, endpoints=4, spread=0.0, kv_tokens=(440_000,), max_loras=0, **more):
    pool = make_pool(endpoints, seed=seed, policy=policy(name))
    engines = [
        make_engine(seed=100 * seed + n, sigma=spread, kv_tokens=kv_tokens[n % len(kv_tokens)], max_loras=max_loras)
        for n in range(endpoints)
    ]
    return Fleet(pool, engines, seed=seed, **more)


def long_and_short(seed, rate=14.0, count=400):
    """Chat with one prompt in ten of about 16,000 tokens; half of the requests carry a limit, which says little."""
    rng = random.Random(seed)
    jobs = []
    for number, at in enumerate(poisson(rng, rate, count)):
        prompt = rng.randint(14_000, 18_000) if rng.random() < 0.1 else rng.randint(100, 600)
        output = rng.randint(50, 400)
        limit = output + rng.randint(0, 500) if rng.random() < 0.5 else None
        jobs.append(Job(at, prompt, output, prefix=((number, prompt),), limit=limit))
    return jobs


def ended_clean(played):
    """Every job was answered and nothing is left in any account."""
    table = played.pool.table
    assert len(played.pool.ledger) == 0
    for column in ("requests", "inflight", "prompt_tokens", "expected_tokens", "new_kv_tokens", "uncached_tokens"):
        assert not getattr(table, column).any()


@pytest.mark.parametrize("spread", [0.0, 0.26], ids=["equal hardware", "hidden spread"])
def test_a_mix_of_long_and_short_prompts_starts_and_ends_sooner_than_with_round_robin(spread):
    ttft, e2e = {}, {}
    for name in ("ours", "round robin"):
        ttft[name], e2e[name] = [], []
        for seed in (1, 2, 3):
            played = fleet(name, seed, spread=spread)
            jobs = played.run(long_and_short(seed))
            assert all(job.outcome is Outcome.SERVED for job in jobs)
            ended_clean(played)
            ttft[name] += [job.ttft_ms for job in jobs]
            e2e[name] += [job.e2e_ms for job in jobs]
    assert mean(ttft["ours"]) < 0.75 * mean(ttft["round robin"])
    assert mean(e2e["ours"]) < (0.97 if spread == 0.0 else 0.9) * mean(e2e["round robin"])


def test_what_is_learned_of_the_endpoints_is_how_they_differ():
    hidden, wrong = 0.0, 0.0
    for seed in range(1, 5):
        played = fleet("ours", seed, spread=0.26)
        played.run(long_and_short(seed, count=800))
        table, engines = played.pool.table, list(played.engines.values())
        # Up to a common factor, which no choice depends on.
        errors = [math.log(table.decode_speed[n] / engines[n].accelerator.decode_factor) for n in range(4)]
        factors = [math.log(engine.accelerator.decode_factor) for engine in engines]
        wrong += max(errors) - min(errors)
        hidden += max(factors) - min(factors)
    assert hidden > 4 * 0.3
    assert wrong < 0.5 * hidden


def test_a_slowed_endpoint_is_relieved_and_gets_its_share_back():
    played = fleet("ours", 5)
    victim, rng = "10.0.0.2:8000", random.Random(5)
    accelerator = played.engines[victim].accelerator
    played.at(START + 10_000, lambda: setattr(accelerator, "slow", 2.5))
    played.at(START + 45_000, lambda: setattr(accelerator, "slow", 1.0))
    jobs = [Job(at, rng.randint(100, 600), rng.randint(50, 300)) for at in poisson(rng, 45.0, 3_800)]
    played.run(jobs)

    def share(begin, end):
        window = [job.endpoint for job in jobs if begin <= job.at_ms < end]
        return window.count(victim) / len(window)

    before = share(0, 10_000)
    assert share(35_000, 45_000) < 0.4 * before
    assert share(70_000, 80_000) > 0.7 * before


def popular(seed, spike, count=700):
    """20 groups with a 2,048-token beginning each; in a spike one of them is two thirds of the requests."""
    rng = random.Random(seed)
    jobs, at = [], 0.0
    for number in range(count):
        hot = 0.3 < number / count < 0.8
        at += rng.expovariate(spike if hot else spike / 3) * 1000.0
        group = "popular" if rng.random() < (0.66 if hot else 0.05) else rng.randrange(20)
        own = 64 * rng.randint(2, 6)
        jobs.append(Job(at, 2_048 + own + 3, rng.randint(50, 300), prefix=((group, 2_048), (("own", number), own))))
    return jobs


@pytest.mark.parametrize("rate", [15.0, 80.0])
def test_a_popular_prefix_overflows_within_bounds_and_keeps_its_hits(rate):
    for seed in (1, 2):
        played = fleet("ours", seed)
        spread = [job for job in played.run(popular(seed, rate)) if job.prefix[0][0] == "popular"]
        single = fleet("ours", seed, endpoints=1)
        alone = [job for job in single.run(popular(seed, rate / 4)) if job.prefix[0][0] == "popular"]
        shares = Counter(job.endpoint for job in spread)
        # At the lower rate hardly anybody waits: whether the prefix is worth a fourth copy is up to the draw.
        assert len(shares) >= (3 if rate < 50.0 else 4)
        assert max(shares.values()) <= 0.5 * len(spread)
        found, possible = (sum(job.cached_tokens for job in jobs) for jobs in (spread, alone))
        assert found >= 0.9 * possible
        # What was predicted is what was found.
        predicted = sum(job.placement.cached_tokens for job in spread)
        assert predicted == pytest.approx(found, rel=0.1)


def test_a_fast_failing_endpoint_does_not_attract_traffic_and_comes_back():
    victim, begin, end = "10.0.0.4:8000", 10_000.0, 25_000.0
    rng = random.Random(6)
    jobs = [Job(at, rng.randint(100, 2_000), rng.randint(20, 300)) for at in poisson(rng, 20.0, 1_500)]
    played = fleet("ours", 6, endpoints=8, fails=lambda address, now: address == victim and begin <= now - START < end)
    played.run(jobs)

    def share(begin, end):
        window = [job.endpoint for job in jobs if begin <= job.at_ms < end]
        return window.count(victim) / len(window)

    assert share(0, begin) > 0.06
    assert share(begin, end) < 0.03
    assert share(55_000, 75_000) > 0.06
    ended_clean(played)


def adapters(seed, count=500, rate=14.0, names=8):
    rng = random.Random(seed)
    weights = [1 / (n + 1) for n in range(names)]
    jobs = []
    for number, at in enumerate(poisson(rng, rate, count)):
        adapter = f"a{rng.choices(range(names), weights)[0]}"
        jobs.append(Job(at, rng.randint(100, 1_000), rng.randint(30, 300), prefix=((number, 64),), model=adapter))
    return jobs


def test_adapters_are_loaded_seldom_and_speed_is_learned_all_the_same():
    loads, ttft = {}, {}
    for name in ("ours", "least request"):
        played = fleet(name, 7, spread=0.2, max_loras=2)
        for endpoint in played.pool.table:
            served = ServedModels(base=("base",), adapters={f"a{n}": "base" for n in range(8)})
            played.pool.apply_served_models(endpoint, served)
        jobs = played.run(adapters(7))
        loads[name] = sum(engine.slots.loads for engine in played.engines.values())
        ttft[name] = mean(job.ttft_ms for job in jobs)
        if name == "ours":
            assert played.pool.learning_counts()["speed_windows"] > 20
        ended_clean(played)
    assert loads["ours"] < 0.5 * loads["least request"]
    assert ttft["ours"] < 0.25 * ttft["least request"]


def test_an_endpoint_with_a_small_cache_is_not_driven_into_preemption():
    preempted = {}
    for name in ("ours", "least request"):
        played = fleet(name, 9, kv_tokens=(200_000, 200_000, 200_000, 30_000))
        rng = random.Random(9)
        jobs = [
            Job(at, rng.randint(2_000, 4_000), rng.randint(200, 500), prefix=((n, 1_920),))
            for n, at in enumerate(poisson(rng, 14.0, 400))
        ]
        played.run(jobs)
        preempted[name] = sum(engine.telemetry.preemptions for engine in played.engines.values())
    assert preempted["least request"] > 5
    assert preempted["ours"] <= 1


def test_without_any_telemetry_the_own_account_still_beats_round_robin(monkeypatch):
    monkeypatch.setattr(Fleet, "_sample", lambda self, address: None)
    ttft = {}
    for name in ("ours", "round robin"):
        jobs = fleet(name, 9).run(long_and_short(9))
        ttft[name] = mean(job.ttft_ms for job in jobs)
        assert quantile((job.ttft_ms for job in jobs), 0.5) < 100
    assert ttft["ours"] < 0.8 * ttft["round robin"]


def test_an_endpoint_that_goes_and_comes_back_in_the_middle_of_it_all():
    played = fleet("ours", 10)
    specs = [endpoint.spec for endpoint in played.pool.table.wanted()]
    for at, wanted in ((5_000, specs[:3]), (5_400, specs), (9_000, specs[1:]), (14_000, specs)):
        played.at(START + at, lambda wanted=wanted: played.pool.apply_endpoints(wanted))
    jobs = played.run(long_and_short(10))
    assert all(job.outcome is Outcome.SERVED for job in jobs)
    ended_clean(played)
    assert not [job for job in jobs if 9_000 < job.at_ms < 14_000 and job.endpoint == "10.0.0.1:8000"]
    assert [job for job in jobs if job.at_ms > 15_000 and job.endpoint == "10.0.0.1:8000"]
