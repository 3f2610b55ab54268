"""More knowledge is really there, and a term that is taken away is really gone."""

from dataclasses import replace

import pytest

from poolpilot_lab.bench.routing.rates import known_rate
from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.scenarios import KNOWN
from poolpilot_lab.sim.variants import ABLATION, ALL, LADDER
from poolpilot_lab.sim.world import HIDDEN, World
from poolpilot_lab.workload.generators import shared_prompts
from poolpilot_lab.workload.streams import adapter_names, adapters

QWEN = PROFILES["qwen3-32b-h100-tp2"]
WORLD = World(fleet=(QWEN,) * 3)


def play(name, traffic=None, world=WORLD):
    router = make_router(name, world, 1)
    simulation = Simulation(ALL[name].world(world), traffic or shared_prompts(3.0, 150, 1, groups=20), router, 1)
    return simulation.run(), router, simulation


def placed(record):
    return [trip.endpoint for trip in record.trips]


def test_true_lengths_are_what_is_expected():
    record, _, _ = play("poolpilot+true-lengths")
    assert all(trip.placement.predicted.output_tokens == trip.call.output_tokens for trip in record.trips)
    record, _, _ = play("poolpilot")
    assert any(trip.placement.predicted.output_tokens != trip.call.output_tokens for trip in record.trips)


def test_an_exact_cache_predicts_what_is_found():
    # At a rate at which every request is admitted before another can change the cache.
    traffic = shared_prompts(0.5, 60, 1, groups=5, output_tokens=20)
    record, _router, _ = play("poolpilot+exact-cache", traffic)
    for trip in record.trips:
        # The picker counts in its own estimated tokens.
        scale = trip.placement.request.prompt_tokens / trip.call.prompt_tokens
        assert trip.placement.cached_tokens == pytest.approx(trip.cached_tokens * scale, abs=1.0)
    assert any(trip.cached_tokens for trip in record.trips)


def test_true_coefficients_are_those_of_the_engines():
    _, router, simulation = play("poolpilot+true-coefficients")
    for endpoint, engine in zip(router.pools[0].table, simulation.engines, strict=True):
        accelerator = engine.accelerator
        assert endpoint.model.token_ms == pytest.approx(accelerator.prefill_factor * QWEN.prefill_b_ms)
        assert endpoint.model.step_ms == pytest.approx(
            accelerator.decode_factor * (QWEN.decode_a_ms + QWEN.step_overhead_ms)
        )


def test_fresh_metrics_are_at_most_25_ms_old_and_some_more():
    world = ALL["poolpilot+fresh-metrics"].world(WORLD)
    assert (world.scrape_ms, world.telemetry_delay_ms) == (25.0, 0.0)


def test_without_histograms_nothing_is_learned_of_speed_and_with_them_something_is():
    _, router, _ = play("poolpilot")
    assert router.pools[0].learning_counts()["speed_windows"] > 0
    for name in ("poolpilot-residuals", "poolpilot-telemetry"):
        _, router, _ = play(name)
        assert router.pools[0].learning_counts()["speed_windows"] == 0


@pytest.mark.parametrize("name", [name for name in (*LADDER, *ABLATION) if name != "poolpilot"])
def test_every_variant_runs_and_decides_otherwise_where_its_term_counts(name):
    names = adapter_names(12)
    # Caches of a size that fills up.
    world = World(fleet=(replace(QWEN, kv_tokens=120_000),) * 3)
    traffic = shared_prompts(3.0, 500, 1, groups=60)
    if "adapter" in name:
        # What an adapter displaces matters while most slots are idle, a slot's price when there are too few.
        rate, number = (0.5, 6) if "eviction" in name else (6.0, 12)
        world, traffic = replace(world, max_loras=2, adapters=names), adapters(rate, 200, 1, number=number)
    same = placed(play(name, traffic, world)[0]) == placed(play("poolpilot", traffic, world)[0])
    assert not same


@pytest.mark.parametrize("seed", [2, 3])
def test_where_long_prompts_queue_everywhere_the_price_of_work_keeps_the_queues_short(seed):
    """A third more than the fleet bears: who avoids waiting at the price of work makes all wait longer."""
    scenario = KNOWN["S5"]
    world, rate = scenario.world(HIDDEN), known_rate(scenario, "results", seed)
    assert rate is not None
    traffic = scenario.traffic(1.3 * rate, round(1.3 * rate * 200.0), seed)

    def mean_wait_ms(policy):
        record = Simulation(world, traffic, make_router(policy, world, seed), seed, scenario.warm_share).run()
        return sum(trip.ttft_ms for trip in record.measured) / len(record.measured)

    ours = mean_wait_ms("poolpilot")
    assert ours < 0.65 * mean_wait_ms("poolpilot-backlog")
    assert ours < mean_wait_ms("lmetric")
