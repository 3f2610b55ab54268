"""Hidden variation: seeded, clipped, mean one per step, off by default."""

import math
from statistics import fmean

import pytest

from poolpilot_lab.engine.model import PROFILES, Accelerator, Variation

PROFILE = PROFILES["llama-3.1-8b-h100"]


def test_without_variation_nothing_varies() -> None:
    accelerator = Accelerator(PROFILE, seed=7)
    assert (accelerator.prefill_factor, accelerator.decode_factor) == (1.0, 1.0)
    assert accelerator.noise(1) == 1.0
    assert accelerator.stall(1e9) == 0.0


def test_factors_come_from_the_seed_and_are_clipped() -> None:
    sigma = 0.262
    drawn = [Accelerator(PROFILE, Variation(sigma=sigma), seed) for seed in range(500)]
    factors = [factor for one in drawn for factor in (one.prefill_factor, one.decode_factor)]
    assert max(factors) == pytest.approx(math.exp(2 * sigma))
    assert min(factors) == pytest.approx(math.exp(-2 * sigma))
    assert fmean(map(math.log, factors)) == pytest.approx(0.0, abs=0.03)
    again = Accelerator(PROFILE, Variation(sigma=sigma), 3)
    assert (again.prefill_factor, again.decode_factor) == (drawn[3].prefill_factor, drawn[3].decode_factor)
    assert drawn[3].prefill_factor != drawn[3].decode_factor


def test_factors_act_on_their_own_part_of_a_step() -> None:
    accelerator = Accelerator(PROFILE)
    decode, mixed = accelerator.step_ms(4, 800, 1, 0, 0), accelerator.step_ms(4, 800, 1, 512, 512**2)
    accelerator.prefill_factor = 2.0
    assert accelerator.step_ms(4, 800, 1, 0, 0) == decode
    assert accelerator.step_ms(4, 800, 1, 512, 512**2) - decode == pytest.approx(2 * (mixed - decode))
    accelerator.decode_factor = 3.0
    assert accelerator.step_ms(4, 800, 1, 0, 0) == pytest.approx(3 * decode)
    assert accelerator.growth_ms(4, 800, 9) == pytest.approx(3 * 4 * PROFILE.decode_c_ms)


def test_step_noise_has_mean_one_and_shrinks_over_a_run() -> None:
    accelerator = Accelerator(PROFILE, Variation(step_noise=0.1), 1)
    single = [accelerator.noise(1) for _ in range(4000)]
    runs = [accelerator.noise(64) for _ in range(4000)]
    assert fmean(single) == pytest.approx(1.0, abs=0.01)
    spread = [math.sqrt(fmean((value - 1) ** 2 for value in values)) for values in (single, runs)]
    assert spread[0] / spread[1] == pytest.approx(8.0, rel=0.1)


def test_an_injected_slow_down_multiplies_every_step() -> None:
    accelerator = Accelerator(PROFILE)
    accelerator.slow = 2.5
    assert accelerator.noise(1) == accelerator.noise(64) == 2.5


def test_stalls_come_at_their_mean_rate_and_length() -> None:
    accelerator = Accelerator(PROFILE, Variation(stall_every_ms=1000, stall_ms=50), 1)
    stalls = [accelerator.stall(now) for now in range(0, 2_000_000, 10)]
    lengths = [stall for stall in stalls if stall]
    assert len(lengths) == pytest.approx(2000, rel=0.1)
    assert fmean(lengths) == pytest.approx(50, rel=0.1)
