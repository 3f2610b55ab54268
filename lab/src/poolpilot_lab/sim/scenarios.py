"""The scenarios by name: traffic, fleet, targets and what happens. A new one is one entry."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from poolpilot_lab.engine.model import PROFILES, Profile
from poolpilot_lab.sim.world import HIDDEN, Change, Slo, World
from poolpilot_lab.workload import generators

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.engine.model import Variation
    from poolpilot_lab.workload.calls import Traffic

_QWEN: Final = PROFILES["qwen3-32b-h100-tp2"]
_H100: Final = PROFILES["llama-3.1-8b-h100"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way of using a pool. Rates in requests/s."""

    name: str
    summary: str
    traffic: Callable[[float, int, int], Traffic]
    """(rate, requests, seed) → what arrives."""
    fleet: tuple[Profile, ...]
    guess: float
    """About the highest rate: where the search for it begins."""
    slo: Slo = field(default_factory=Slo)
    block_tokens: int = 64
    warm_share: float = 0.15
    quick_s: float
    """Seconds of arrivals in a quick run."""
    full_s: float
    """And in a full one; also in the search for the highest rate: several times what a request takes."""
    nominal: float | None = None
    """A rate that belongs to the scenario: run besides the shares of the highest one."""
    changes: tuple[Change, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of the world."""

    @property
    def key(self) -> str:
        """What the scenario is, as text that is the same in every process: runs are stored under it."""
        make = self.traffic
        bound = {} if not isinstance(make, partial) else make.keywords
        function: Any = make.func if isinstance(make, partial) else make
        given = [f"{name}={value}" for name, value in bound.items()]
        given += [str(value.stat().st_mtime_ns) for value in bound.values() if isinstance(value, Path)]
        rest = [getattr(self, part.name) for part in fields(self) if part.name != "traffic"]
        return f"{function.__module__}.{function.__qualname__} {given} {rest!r}"

    def world(self, variation: Variation = HIDDEN) -> World:
        """Its world, with engines that vary so much."""
        return World(
            fleet=self.fleet,
            block_tokens=self.block_tokens,
            variation=variation,
            changes=self.changes,
            **self.more,
        )

    def with_endpoints(self, count: int) -> Scenario:
        """The same with another number of endpoints, profiles repeated in their order."""
        fleet = tuple(self.fleet[position % len(self.fleet)] for position in range(count))
        scale = count / len(self.fleet)
        changes = tuple(change for change in self.changes if change.endpoint < count)
        return replace(self, fleet=fleet, guess=self.guess * scale, changes=changes)

    def with_engine(self, profile: Profile) -> Scenario:
        """The same with one engine everywhere."""
        return replace(self, fleet=(profile,) * len(self.fleet))


_ALL: Final = (
    Scenario(
        name="S1",
        summary="shared system prompts that fit the fleet's caches, not one endpoint's",
        traffic=generators.shared_prompts,
        fleet=(_QWEN,) * 8,
        guess=16.0,
        warm_share=0.25,
        quick_s=180.0,
        full_s=600.0,
    ),
    Scenario(
        name="S4",
        summary="multi-turn chat, closed loop with think time",
        traffic=generators.chat,
        fleet=(_QWEN,) * 4,
        guess=55.0,
        slo=Slo(1_000.0, 50.0),
        warm_share=0.4,
        quick_s=150.0,
        full_s=300.0,
    ),
    Scenario(
        name="S5",
        summary="long conversations whose prefixes do not all fit (Mooncake's statistics)",
        traffic=generators.conversations,
        fleet=(_QWEN,) * 8,
        guess=7.0,
        slo=Slo(30_000.0, 100.0),
        block_tokens=256,
        quick_s=350.0,
        full_s=900.0,
    ),
    Scenario(
        name="poisson-mix",
        summary="70 % short and 30 % long answers, nothing shared",
        traffic=generators.short_long,
        fleet=(_H100,) * 4,
        guess=50.0,
        nominal=20.0,
        warm_share=0.25,
        quick_s=90.0,
        full_s=200.0,
    ),
)

SCENARIOS: Final[dict[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}
"""In the order of the report."""

TRACE: Final = "trace"
"""Name of the scenario that plays a recorded trace."""


def trace_scenario(make: Callable[[float, int, int], Traffic], sample: Traffic) -> Scenario:
    """A recorded trace on the reference fleet; `sample`: some of it, to size blocks and the first guess."""
    mean = sum(call.prompt_tokens + 8.0 * call.output_tokens for call in sample.calls) / len(sample.calls)
    adapters = tuple(sorted({call.adapter for call in sample if call.adapter}))
    return Scenario(
        name=TRACE,
        summary="a recorded trace",
        traffic=make,
        fleet=(_QWEN,) * 8,
        guess=8.0 * 10_000.0 / mean,
        slo=Slo(5_000.0, 100.0),
        quick_s=350.0,
        full_s=900.0,
        block_tokens=sample.block_tokens,
        more={"max_loras": 4, "adapters": adapters} if adapters else {},
    )
