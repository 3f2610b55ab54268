"""The blend with adapter affinity on top: prefix 3, queue 2, KV cache 2, LoRA 4."""

from __future__ import annotations

from poolpilot_lab.sim.baselines.base import Baseline, llmd
from poolpilot_lab.sim.router import Sampling

BASELINE = Baseline(
    name="lora-affinity",
    source="KServe LLMInferenceService with adapters (llm-d scorers, lora-affinity weight 4), read every 50 ms",
    build=lambda _: llmd(
        ("queue-scorer", 2, {}),
        ("kv-cache-utilization-scorer", 2, {}),
        ("prefix-cache-scorer", 3, {}),
        ("lora-affinity-scorer", 4, {}),
        ("max-score-picker", None, {}),
    ),
    sampling=Sampling.LATEST,
    scrape_ms=50.0,
)
