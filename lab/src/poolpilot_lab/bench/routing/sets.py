"""What a set runs: tables, each in a world, with its scenarios, loads and policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.routing.flow_parts import FLOW_ASKED, FLOW_PARTS, Part
from poolpilot_lab.sim.policies import ROLLOUT
from poolpilot_lab.sim.scenarios import LORA
from poolpilot_lab.sim.trip import POOLPILOT
from poolpilot_lab.sim.variants import ABLATION, LADDER, SHARING
from poolpilot_lab.sim.world import HIDDEN, IDENTICAL

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Variation

MIDDLE: Final = (0.7,)
INFORMED: Final = (POOLPILOT, "lmetric", "dynamo", "lpwl", "predicted-latency", "smg-cache-aware", "least-request")
"""Poolpilot, and of the baselines those that are the best somewhere where endpoints differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One file of rows."""

    title: str
    variation: Variation = HIDDEN
    scenarios: tuple[str, ...] | None = None
    """Its own ones, where none were asked for; None: all that have a number."""
    loads: tuple[float, ...] | None = None
    """Its own ones, where none were asked for; None: the set's."""
    policies: tuple[str, ...] | None = None
    """Its own ones; None: those asked for."""
    seeds: int | None = None
    """Hidden draws at most."""
    parts: tuple[Part, ...] = ()
    """In place of scenarios, loads and policies: several questions, each with its own."""
    beside: frozenset[str] = frozenset()
    """Runs also where all of these scenarios were asked for."""
    varied: bool = False
    """Compares poolpilot with itself."""

    @property
    def same_world(self) -> bool:
        """Whether highest rates are those of the table `results`."""
        return self.variation == HIDDEN

    @property
    def own(self) -> tuple[str, ...] | None:
        """Scenarios of its own, where none were asked for."""
        return tuple(name for part in self.parts for name in part.scenarios) if self.parts else self.scenarios

    def part(self, scenario: str) -> Part | None:
        """What a scenario is run for."""
        return next((part for part in self.parts if scenario in part.scenarios), None)


TABLES: Final[dict[str, Table]] = {
    "results": Table(title="Hidden speeds (±26 %), poolpilot with the generic prior"),
    "identical": Table(title="Identical hardware, poolpilot with the generic prior", variation=IDENTICAL, loads=MIDDLE),
    "uniform": Table(
        title="Uniform load on identical hardware: where all tie",
        variation=IDENTICAL,
        scenarios=("uniform", "poisson-mix-naive"),
        loads=MIDDLE,
        # Where all tie, more draws tell nothing more.
        seeds=5,
    ),
    "profile": Table(
        title="Hidden speeds, poolpilot with the published coefficients", loads=MIDDLE, policies=(POOLPILOT,)
    ),
    "slowed": Table(title="One endpoint slowed", scenarios=("S10-slow",), loads=MIDDLE, policies=INFORMED),
    "stale": Table(
        title="One picker with telemetry every 50 ms and every 5 s",
        scenarios=("S12-1-50", "S12-1-5000"),
        loads=MIDDLE,
    ),
    "fail": Table(
        title="One of eight answers errors fast",
        scenarios=("S11-fail",),
        loads=MIDDLE,
        policies=(POOLPILOT, "lmetric", "least-request"),
    ),
    "kill": Table(
        title="One of eight dies at ρ 0.8",
        scenarios=("S11-kill",),
        loads=(0.8,),
        policies=(POOLPILOT, "lmetric", "least-request"),
    ),
    "endpoints": Table(
        title="Endpoints needed for the same traffic",
        scenarios=("S1", "S6", "poisson-mix"),
        loads=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1),
        seeds=3,
    ),
    "flow": Table(
        title="Flow control: shares of tenants, floods, overload, late binding",
        parts=FLOW_PARTS,
        beside=FLOW_ASKED,
        seeds=5,
    ),
    "adapters": Table(
        title="LoRA adapters: number, skew and slots",
        scenarios=tuple(LORA),
        loads=MIDDLE,
        policies=(POOLPILOT, "lora-affinity", "least-request"),
    ),
    "rollout": Table(
        title="Poolpilot, the greedy oracle and the rollout oracle",
        scenarios=("S1", "S6", "poisson-mix"),
        loads=MIDDLE,
        seeds=2,
        policies=(POOLPILOT, "lmetric", ROLLOUT),
    ),
    "ladder": Table(
        title="Ladder: poolpilot with more knowledge",
        scenarios=("S1", "S6", "poisson-mix"),
        loads=MIDDLE,
        policies=tuple(LADDER),
        varied=True,
    ),
    "ablation": Table(
        title="Ablation: poolpilot with a term less",
        # The last three are where the terms of full caches, adapters and full KV memory count at all.
        scenarios=("S1", "S6", "poisson-mix", "S2", "S8", "harm-preemption-storm"),
        loads=MIDDLE,
        policies=tuple(ABLATION),
        varied=True,
    ),
    "sharing": Table(
        title="Four pickers, telemetry every 5 s: what each kind of sharing buys back",
        scenarios=("S12", "S1-4-5000", "S8-4-5000"),
        loads=MIDDLE,
        policies=tuple(SHARING),
        varied=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much a set runs."""

    loads: tuple[float, ...]
    seeds: int
    """Hidden draws."""
    tables: tuple[str, ...]
    """Where no scenarios were asked for; else those without scenarios of their own."""
    most_requests: int | None = None
    """Of one run, where no scenarios were asked for."""


SETS: Final = {
    "quick": Size((0.7,), 1, ("results", "uniform"), most_requests=4_000),
    "full": Size((0.5, 0.7, 0.9), 20, tuple(TABLES)),
}
