"""Random: what a client-side balancer without any state does."""

from __future__ import annotations

from poolpilot_lab.sim.baselines.base import Baseline, llmd

BASELINE = Baseline(
    name="random",
    source="llm-d-router 0.10 random-picker; load balancing folklore",
    build=lambda _: llmd(("random-picker", None, {})),
)
