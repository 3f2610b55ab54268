"""llm-d's current default: sticky to warm endpoints until they are saturated, else the least uncached token load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.sim.baselines.base import Baseline, llmd

if TYPE_CHECKING:
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.routing.pipeline import Profile

TOLERATED_MS = 14_000.0
"""TTFT penalty that stickiness may cost: 14 s in the blog's calibration of its reference pod."""


def _build(world: World) -> Profile:
    # Their recipe: the prefill speed of one idle pod, here the first profile's at 8,192 tokens.
    profile = world.fleet[0]
    per_token = profile.prefill_b_ms + profile.prefill_c_ms * 8_192
    return llmd(
        (
            "prefix-cache-affinity-filter",
            None,
            {"maxTTFTPenaltyMs": TOLERATED_MS, "peakPrefillThroughput": 1_000.0 / per_token},
        ),
        ("token-load-scorer", 1, {}),
        ("max-score-picker", None, {}),
    )


BASELINE = Baseline(
    name="llm-d-token-load",
    source="llm-d blog 2026-08-17 (sticky until saturated), τ calibrated to the simulated engine",
    build=_build,
    first_tokens=True,
    scrape_ms=200.0,
)
