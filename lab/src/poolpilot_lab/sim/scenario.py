"""What a scenario is: traffic, fleet, targets and what happens."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from poolpilot_lab.sim.world import HIDDEN, Change, Slo, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.engine.model import Profile, Variation
    from poolpilot_lab.workload.calls import Traffic

_NOT_IN_KEY: Final = (
    "traffic",
    "summary",
    "guess",
    "run_s",
    "loads",
    "nominal",
    "rate_of",
    "unlimited",
    "draws",
    "scaled",
)
"""Of a scenario: what changes no run of a given rate and number of requests (the traffic is named apart)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way of using a pool. Rates in requests/s."""

    name: str
    summary: str
    traffic: Callable[[float, int, int], Traffic]
    """(rate, requests, seed) → what arrives."""
    fleet: tuple[Profile, ...]
    guess: float
    """About the highest rate on engines as their profiles say: where the search for it begins."""
    unlimited: bool = False
    """Its engines take any rate: `guess` counts as ρ 1."""
    rate_of: str = ""
    """Another scenario whose highest rate is also this one's: like traffic on the same fleet while nothing happens."""
    scaled: bool = False
    """The highest rates of further hidden draws are the first one's times how fast their engines are about: a search of
    its own for each takes longer than the runs."""
    slo: Slo = field(default_factory=Slo)
    block_tokens: int = 64
    warm_share: float = 0.15
    run_s: float
    """Seconds of arrivals in a run."""
    search_s: float
    """And in the search for the highest rate: several times what a request takes."""
    nominal: float | None = None
    """A rate that belongs to the scenario: run besides the shares of the highest one."""
    loads: tuple[float, ...] | None = None
    """Where other shares of the highest rate than the usual ones are the question."""
    draws: int | None = None
    """Hidden draws at most, where no bar asks for more."""
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
        rest = [getattr(self, part.name) for part in fields(self) if part.name not in _NOT_IN_KEY]
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

    def steady_world(self, variation: Variation = HIDDEN) -> World:
        """The world while nothing happens, with the endpoints of the start: of which the highest rate is found."""
        world = self.world(variation)
        fleet = tuple(profile for endpoint, profile in enumerate(self.fleet) if not world.starts_later(endpoint))
        return replace(world, fleet=fleet, changes=(), pickers=1, scaling=None)

    def with_endpoints(self, count: int) -> Scenario:
        """The same with another number of endpoints, profiles repeated in their order."""
        fleet = tuple(self.fleet[position % len(self.fleet)] for position in range(count))
        scale = count / len(self.fleet)
        changes = tuple(change for change in self.changes if change.endpoint < count)
        return replace(self, fleet=fleet, guess=self.guess * scale, changes=changes)

    def with_engine(self, profile: Profile) -> Scenario:
        """The same with one engine everywhere."""
        return replace(self, fleet=(profile,) * len(self.fleet))
