"""Built-in step-time profiles: what one model on one GPU type costs per step, and how many KV tokens it holds.

Source of every number: least-squares fits (relative error) of the kernel tables in NVIDIA AIConfigurator 0.12.0
(Apache-2.0), backend vllm, BF16. The two CPU overheads were tuned on 30 measured rows of Qwen3-32B TP2 on H100 with a
chunk budget of 2,048 tokens; for the other models they are an assumption. KV capacity is measured for Qwen3-32B TP2
(307,328 tokens, llm-d's capacity benchmark) and an estimate (±5 to ±10 %) for the others. Time between tokens is
validated (see docs/engine.md); time to first token is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Profile:
    """Step-time coefficients in milliseconds and the KV capacity of one pod.

    Symbols: n = prompt tokens computed in a chunk, p = tokens of that sequence already in the cache, B = sequences
    decoding, K = sum of their context tokens. `step_time` holds the formulas.
    """

    id: str
    model: str
    gpu: str
    tensor_parallel: int
    prefill_floor_ms: float
    prefill_a_ms: float
    prefill_b_ms: float
    """per prompt token"""
    prefill_c_ms: float
    """per token squared"""
    decode_a_ms: float
    decode_b_ms: float
    """per decoding sequence"""
    decode_c_ms: float
    """per context token"""
    kv_tokens: int
    kv_tokens_measured: bool
    kv_bytes_per_token: int
    step_overhead_ms: float = 1.3
    sequence_overhead_ms: float = 0.045

    def scaled(self, factor: float) -> Profile:
        """The same pod with every time multiplied by `factor`: 0.1 is ten times faster."""
        return replace(
            self,
            prefill_floor_ms=self.prefill_floor_ms * factor,
            prefill_a_ms=self.prefill_a_ms * factor,
            prefill_b_ms=self.prefill_b_ms * factor,
            prefill_c_ms=self.prefill_c_ms * factor,
            decode_a_ms=self.decode_a_ms * factor,
            decode_b_ms=self.decode_b_ms * factor,
            decode_c_ms=self.decode_c_ms * factor,
            step_overhead_ms=self.step_overhead_ms * factor,
            sequence_overhead_ms=self.sequence_overhead_ms * factor,
        )


_QWEN3_32B_H100 = Profile(
    id="qwen3-32b-h100-tp2",
    model="Qwen/Qwen3-32B",
    gpu="H100-SXM-80GB",
    tensor_parallel=2,
    prefill_floor_ms=18.419,
    prefill_a_ms=4.09822,
    prefill_b_ms=0.0498246,
    prefill_c_ms=8.27268e-07,
    decode_a_ms=13.5954,
    decode_b_ms=0.0259737,
    decode_c_ms=4.24026e-05,
    kv_tokens=307_328,
    kv_tokens_measured=True,
    kv_bytes_per_token=262_144,
)

_LLAMA_8B_H100 = Profile(
    id="llama-3.1-8b-h100",
    model="meta-llama/Llama-3.1-8B",
    gpu="H100-SXM-80GB",
    tensor_parallel=1,
    prefill_floor_ms=7.382,
    prefill_a_ms=1.51214,
    prefill_b_ms=0.0200381,
    prefill_c_ms=4.05764e-07,
    decode_a_ms=6.37159,
    decode_b_ms=0.011317,
    decode_c_ms=4.14769e-05,
    kv_tokens=440_000,
    kv_tokens_measured=False,
    kv_bytes_per_token=131_072,
)

_LLAMA_8B_A100 = Profile(
    id="llama-3.1-8b-a100",
    model="meta-llama/Llama-3.1-8B",
    gpu="A100-SXM-80GB",
    tensor_parallel=1,
    prefill_floor_ms=12.438,
    prefill_a_ms=7.5105,
    prefill_b_ms=0.0546189,
    prefill_c_ms=1.52655e-06,
    decode_a_ms=11.5615,
    decode_b_ms=0.0313143,
    decode_c_ms=8.23917e-05,
    kv_tokens=440_000,
    kv_tokens_measured=False,
    kv_bytes_per_token=131_072,
)

_LLAMA_8B_L40S = Profile(
    id="llama-3.1-8b-l40s",
    model="meta-llama/Llama-3.1-8B",
    gpu="L40S-48GB",
    tensor_parallel=1,
    prefill_floor_ms=25.112,
    prefill_a_ms=2.14074,
    prefill_b_ms=0.0677632,
    prefill_c_ms=1.72429e-06,
    decode_a_ms=22.2536,
    decode_b_ms=0.0359405,
    decode_c_ms=0.000187337,
    kv_tokens=185_000,
    kv_tokens_measured=False,
    kv_bytes_per_token=131_072,
)

PROFILES: dict[str, Profile] = {
    profile.id: profile for profile in (_QWEN3_32B_H100, _LLAMA_8B_H100, _LLAMA_8B_A100, _LLAMA_8B_L40S)
}
"""Built-in profiles by id."""
