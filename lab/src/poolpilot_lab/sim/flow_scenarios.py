"""Scenarios of the table `flow`: pairs with and without who stands in the way, at the same share of what can be borne.

Four H100 with Llama-3.1-8B each, in the imperfect world of all scenarios.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.sim.flow_autoscaler import Scaling
from poolpilot_lab.sim.scenario import Scenario
from poolpilot_lab.sim.world import Slo
from poolpilot_lab.workload import contention

_FLEET: Final[dict[str, Any]] = {
    "fleet": (PROFILES["llama-3.1-8b-h100"],) * 4,
    "warm_share": 0.2,
    "run_s": 50.0,
    "search_s": 80.0,
}
_TENANTS: Final = 20
_BULLY: Final = (10.0, *(1.0,) * (_TENANTS - 1))
_LONG_SHARE: Final = 0.05

EVEN: Final = "tenants-even"
BULLY: Final = "tenants-bully"
BACKLOGGED: Final = "tenants-backlogged"
CHAT: Final = "chat"
FLOOD: Final = "chat-flood"
PREFILL: Final = "prefill-bound"
ADVERSARY: Final = "adversary"
SCALE_OUT: Final = "scale-out"

FLOW_SCENARIOS: Final[dict[str, Scenario]] = {
    one.name: one
    for one in (
        Scenario(
            name=EVEN,
            summary="twenty tenants with equal shares",
            traffic=contention.shares,
            guess=95.0,
            **_FLEET,
        ),
        Scenario(
            name=BULLY,
            rate_of=EVEN,
            summary="the same total, but one of the twenty sends ten times its share",
            traffic=partial(contention.shares, weights=_BULLY),
            guess=95.0,
            **_FLEET,
        ),
        Scenario(
            name=BACKLOGGED,
            rate_of=EVEN,
            summary="two tenants, 1:2, both with more than half of what can be borne",
            traffic=partial(contention.shares, weights=(1.0, 2.0)),
            guess=95.0,
            **_FLEET,
        ),
        Scenario(
            name=CHAT,
            summary="chat of ten tenants",
            traffic=contention.flood,
            guess=105.0,
            **_FLEET,
        ),
        Scenario(
            name=FLOOD,
            summary="chat, and a flood of 30,000-token prompts of one more tenant",
            traffic=partial(contention.flood, long_share=_LONG_SHARE),
            guess=42.0,
            slo=Slo(2_000.0, 50.0, {"flood": (10_000.0, 100.0)}),
            **_FLEET,
        ),
        Scenario(
            name=PREFILL,
            summary="prompts of very different lengths, short answers",
            traffic=contention.prefill_bound,
            guess=25.0,
            slo=Slo(5_000.0, 100.0),
            **_FLEET | {"run_s": 200.0, "search_s": 150.0},
        ),
        Scenario(
            name=ADVERSARY,
            summary="who would starve beside urgent requests and an attacker with a new name for each request",
            traffic=contention.adversary,
            guess=58.0,
            slo=Slo(2_000.0, 50.0, {"long": (10_000.0, 100.0)}),
            **_FLEET,
        ),
        Scenario(
            name=SCALE_OUT,
            rate_of=CHAT,
            summary="chat that grows within 90 s to twice what the four endpoints bear, and an autoscaler that may add "
            "eight, each of them 30 s after it was asked for",
            traffic=contention.ramp,
            guess=105.0,
            more={"scaling": Scaling(first=4, goal=8, since_ms=30_000.0)},
            **_FLEET | {"fleet": _FLEET["fleet"] * 3, "warm_share": 0.05, "run_s": 367.0},
        ),
    )
}
"""By name."""
