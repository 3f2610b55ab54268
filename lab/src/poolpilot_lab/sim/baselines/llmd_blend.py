"""llm-d's blend of scorers: prefix cache 3, queue 2, KV cache 2."""

from __future__ import annotations

from poolpilot_lab.sim.baselines.base import Baseline, llmd

BASELINE = Baseline(
    name="llm-d-blend",
    source="llm-d-router 0.10 without a configuration; its scorers as this project implements them, read every 50 ms",
    build=lambda _: llmd(
        ("queue-scorer", 2, {}),
        ("kv-cache-utilization-scorer", 2, {}),
        ("prefix-cache-scorer", 3, {}),
        ("max-score-picker", None, {}),
    ),
    scrape_ms=50.0,
)
