"""The step-time formulas give the example values published with the coefficients."""

import json
from pathlib import Path

import pytest

from poolpilot_lab.engine.model import PROFILES, Accelerator, step_time
from poolpilot_lab.engine.model.profiles import Profile

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "engine-models.json"

# prefill (2048, 0), (1200, 6000), (16, 0); decode (1, 1024), (64, 65536); mixed (32, 65536, chunk of 1024 after 4096)
EXAMPLES = {
    "qwen3-32b-h100-tp2": (109.609, 76.992, 18.419, 13.665, 18.037, 78.818),
    "llama-3.1-8b-h100": (44.252, 31.985, 7.382, 6.425, 9.814, 36.585),
    "llama-3.1-8b-a100": (125.773, 97.234, 12.438, 11.677, 18.965, 91.084),
    "llama-3.1-8b-l40s": (148.152, 110.769, 25.112, 22.481, 36.831, 124.128),
}


def test_every_profile_has_examples() -> None:
    assert set(EXAMPLES) == set(PROFILES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_formulas_give_the_published_examples(name: str) -> None:
    profile = PROFILES[name]
    values = (
        step_time.prefill_alone_ms(profile, 2048, 0),
        step_time.prefill_alone_ms(profile, 1200, 6000),
        step_time.prefill_alone_ms(profile, 16, 0),
        step_time.decode_alone_ms(profile, 1, 1024),
        step_time.decode_alone_ms(profile, 64, 65_536),
        step_time.mixed_step_ms(profile, 32, 65_536, [(1024, 4096)]),
    )
    assert values == pytest.approx(EXAMPLES[name], abs=0.0006)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_accelerator_without_variation_follows_the_mixed_formula(name: str) -> None:
    profile = PROFILES[name]
    chunks = [(1024, 4096), (300, 0)]
    tokens = sum(n for n, _ in chunks)
    attention = sum(n * n + 2 * n * p for n, p in chunks)
    step = Accelerator(profile).step_ms(32, 65_536, len(chunks), tokens, attention)
    assert step == pytest.approx(step_time.mixed_step_ms(profile, 32, 65_536, chunks))


def test_a_prompt_costs_the_same_attention_in_one_chunk_or_many() -> None:
    profile = PROFILES["llama-3.1-8b-h100"]
    whole = step_time.prefill_part_ms(profile, 8192, 8192**2)
    pieces = sum(step_time.prefill_part_ms(profile, 2048, 2048**2 + 2 * 2048 * p) for p in range(0, 8192, 2048))
    assert pieces == pytest.approx(whole)


def test_scaling_a_profile_scales_every_step() -> None:
    profile = PROFILES["llama-3.1-8b-a100"]
    fast = profile.scaled(0.1)
    assert step_time.mixed_step_ms(fast, 3, 900, [(64, 10)]) == pytest.approx(
        0.1 * step_time.mixed_step_ms(profile, 3, 900, [(64, 10)])
    )
    assert step_time.prefill_alone_ms(fast, 1, 0) == pytest.approx(0.1 * profile.prefill_floor_ms)
    assert fast.kv_tokens == profile.kv_tokens


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data/engine-models.json beside the repository")
def test_profiles_are_the_shared_coefficients() -> None:
    document = json.loads(SHARED.read_text())
    assert {model["id"] for model in document["models"]} == set(PROFILES)
    for model in document["models"]:
        assert PROFILES[model["id"]] == Profile(
            id=model["id"],
            model=model["model"],
            gpu=model["gpu"],
            tensor_parallel=model["tp"],
            prefill_floor_ms=model["prefill"]["floor_ms"],
            prefill_a_ms=model["prefill"]["a_ms"],
            prefill_b_ms=model["prefill"]["b_ms_per_token"],
            prefill_c_ms=model["prefill"]["c_ms_per_token2"],
            decode_a_ms=model["decode"]["a_ms"],
            decode_b_ms=model["decode"]["b_ms_per_sequence"],
            decode_c_ms=model["decode"]["c_ms_per_context_token"],
            kv_tokens=model["kv_cache"]["tokens"],
            kv_tokens_measured=model["kv_cache"]["kind"] == "measured",
            kv_bytes_per_token=model["kv_cache"]["bytes_per_token_all_gpus"],
            step_overhead_ms=document["overhead"]["per_step_ms"],
            sequence_overhead_ms=document["overhead"]["per_sequence_ms"],
        )
        names = ("prefill(n=2048,p=0)", "prefill(n=1200,p=6000)", "prefill(n=16,p=0)", "decode(B=1,K=1024)")
        names += ("decode(B=64,K=65536)", "mixed(B=32,K=65536,chunks=[(n=1024,p=4096)])")
        assert tuple(model["examples_ms"][name] for name in names) == EXAMPLES[model["id"]]
