"""Scenarios in which a cost-based policy could do harm, each small: what goes wrong there, and which guard bounds it.

`tests/unit/sim/test_harms.py` holds poolpilot's p99 in each to that of the best baseline; `--scenario harm-…` runs one
as any other scenario.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.sim.scenario import Scenario
from poolpilot_lab.sim.world import Change, Slo, Special
from poolpilot_lab.workload import streams
from poolpilot_lab.workload.troubled import troubled

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Profile

_H100: Final = PROFILES["llama-3.1-8b-h100"]
ENDPOINTS: Final = 6


@dataclass(frozen=True, slots=True)
class Harm:
    """One harm. `rate`: requests/s at about ρ 0.7."""

    scenario: Scenario
    rate: float
    guard: str
    """What of the policy bounds the harm."""


def _harm(
    name: str,
    summary: str,
    guard: str,
    *,
    rate: float = 70.0,
    traffic: Any = troubled,
    fleet: tuple[Profile, ...] = (_H100,) * ENDPOINTS,
    changes: tuple[Change, ...] = (),
    **more: Any,
) -> Harm:
    scenario = Scenario(
        name=f"harm-{name}",
        summary=summary,
        traffic=traffic,
        fleet=fleet,
        guess=rate / 0.7,
        slo=Slo(2_000.0, 50.0),
        warm_share=0.25,
        run_s=20.0,
        search_s=60.0,
        draws=5,
        changes=changes,
        more=more,
    )
    return Harm(scenario, rate, guard)


_HALF: Final = range(ENDPOINTS // 2)

HARMS: Final[dict[str, Harm]] = {
    harm.scenario.name: harm
    for harm in (
        _harm(
            "fast-failing",
            "one endpoint answers errors within 20 ms, and so looks idle",
            "failure penalty: 1 s per recent failure, halved by each success",
            changes=(Change(0.3, "fail", 2, 20.0),),
        ),
        _harm(
            "long-decodes",
            "3 % of the answers have 6,000 to 10,000 tokens",
            "answers' lengths are learned; own decode is discounted",
            traffic=partial(troubled, long_answers=0.03),
            rate=33.0,
        ),
        _harm(
            "speculative",
            "half of the endpoints decode 2.5 tokens a step, in steps a quarter longer",
            "decode residual from the engine's own token times",
            specials=tuple(Special(endpoint, tokens_per_step=2.5, step_factor=1.25) for endpoint in _HALF),
            rate=90.0,
        ),
        _harm(
            "no-prefix-cache",
            "half of the endpoints cache no prefixes",
            "hits are trusted as far as the engine's counter confirms them",
            specials=tuple(Special(endpoint, prefix_caching=False) for endpoint in _HALF),
            rate=65.0,
        ),
        _harm(
            "no-chunked-prefill",
            "whole prompts in one step: every prefill stops all decodes of its engine",
            "delay to others by prefill",
            max_num_batched_tokens=131_072,
        ),
        _harm(
            "data-parallel-attention",
            "two endpoints with four ranks each, the fullest of which sets the step",
            "residuals per endpoint; the batch limit is the engine's own",
            specials=tuple(Special(endpoint, ranks=4) for endpoint in (0, 1)),
            rate=100.0,
        ),
        _harm(
            "preemption-storm",
            "KV caches of 45,000 tokens and long answers",
            "barrier on the predicted KV peak",
            fleet=(replace(_H100, kv_tokens=45_000),) * ENDPOINTS,
            traffic=partial(troubled, longer=3.0),
            rate=24.0,
        ),
        _harm(
            "cold-adapters",
            "200 adapters, four slots, loads of two seconds that stop the whole batch",
            "the load is priced as time of the whole batch",
            traffic=partial(streams.adapters, number=200),
            adapters=streams.adapter_names(200),
            max_loras=4,
            lora_load_ms=2_000.0,
            rate=5.0,
        ),
        _harm(
            "engine-priority",
            "engines serve a fifth of the requests before all others, whatever the picker predicted",
            "waits are corrected by the queues that engines tell",
            traffic=partial(troubled, urgent=0.2),
            priority_scheduling=True,
        ),
        _harm(
            "quantised",
            "half of the endpoints are quantised: faster by 40 %, with more room for KV",
            "residuals per endpoint, KV capacity as told",
            fleet=(replace(_H100.scaled(0.6), id="quantised", kv_tokens=600_000),) * 3 + (_H100,) * 3,
            rate=85.0,
        ),
        _harm(
            "wrong-estimates",
            "a quarter of the prompts hold three times the tokens that the picker thinks; a tenth ask for 4 answers",
            "waits are corrected by the queues that engines tell; tokens are learned from usage",
            traffic=partial(troubled, several=0.1),
            misjudged=(0.25, 1.0 / 3.0),
            rate=50.0,
        ),
        _harm(
            "aborts",
            "three of ten clients leave within eight seconds",
            "an abort releases its booking and teaches nothing",
            traffic=partial(troubled, impatient=0.3),
            rate=80.0,
        ),
    )
}
