"""What the table `flow` asks: scenarios in pairs, their loads, and who is compared there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.flow_policies import FLOW
from poolpilot_lab.sim.flow_scenarios import ADVERSARY, BACKLOGGED, BULLY, CHAT, EVEN, FLOOD, PREFILL, SCALE_OUT
from poolpilot_lab.sim.trip import POOLPILOT

FLOW_ASKED: Final = frozenset({"S6", "S7", "S13", "poisson-mix"})
DROP: Final = f"{FLOW}-drop"
FIRST_COME: Final = f"{FLOW}-first-come"
QUEUES: Final = f"{FLOW}-queues"
PROBABILISTIC: Final = f"{POOLPILOT}-probabilistic"
HARD: Final = f"{POOLPILOT}-hard-shed"
WARM: Final = ("S1", "S5", "S8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One question."""

    title: str
    scenarios: tuple[str, ...]
    loads: tuple[float, ...]
    policies: tuple[str, ...]
    """Of the baselines among them, those asked for."""
    oracle: bool = True
    """The oracle runs too: its time grows with what waits, minutes for thousands of requests."""
    asked_by: tuple[str, ...] = ()
    """Scenarios with numbers that it belongs to: it runs where they are asked for."""


_ALL: Final = (FLOW, FIRST_COME, POOLPILOT, *BASELINES)

FLOW_PARTS: Final = (
    Part(
        title="One of twenty tenants sends ten times its share",
        scenarios=(EVEN, BULLY),
        loads=(0.9, 1.2),
        policies=_ALL,
        asked_by=("S7",),
    ),
    Part(
        title="A flood of 30,000-token prompts",
        scenarios=(CHAT, FLOOD),
        loads=(0.9,),
        policies=_ALL,
        asked_by=("S6",),
    ),
    Part(
        title="Two tenants that always have something waiting",
        scenarios=(BACKLOGGED,),
        loads=(1.8,),
        policies=(FLOW, FIRST_COME, POOLPILOT),
        asked_by=("S7",),
    ),
    Part(
        title="Who would starve",
        scenarios=(ADVERSARY,),
        loads=(1.1,),
        policies=(FLOW, FIRST_COME, POOLPILOT),
        asked_by=("S6", "S7"),
    ),
    Part(
        title="Overload, half of it sheddable",
        scenarios=("S13",),
        loads=(0.7, 1.0, 1.2, 1.5),
        policies=(FLOW, DROP, POOLPILOT, PROBABILISTIC, HARD),
    ),
    Part(
        title="Late binding",
        scenarios=(PREFILL, "S6", "S7", "poisson-mix"),
        loads=(0.8, 0.95),
        policies=(FLOW, QUEUES, POOLPILOT),
    ),
    Part(
        title="Prefixes and adapters that endpoints hold, while engines fill up",
        scenarios=WARM,
        loads=(0.9, 1.0),
        policies=(FLOW, POOLPILOT),
        asked_by=("S7",),
    ),
    Part(
        title="An autoscaler that follows the picker's queue and saturation, or the engines' own queues",
        scenarios=(SCALE_OUT,),
        loads=(1.0,),
        policies=(FLOW, POOLPILOT),
        oracle=False,
        asked_by=("S13",),
    ),
)
