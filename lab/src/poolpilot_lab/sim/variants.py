"""Poolpilot with one piece of knowledge more (the ladder) or one term less (the ablation), by name.

The ladder says which information would be worth buying, the ablation what each term of the cost buys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from typing_extensions import override

from poolpilot_lab.sim.trip import POOLPILOT
from poolpilot_picker.learning.lengths import OutputLengths
from poolpilot_picker.routing.predicted_finish import PredictedFinishParameters

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Engine
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.requests.request import PrefixChain
    from poolpilot_picker.state.endpoints import Floats

Knowledge = Literal["generic", "profile", "true"]
"""Of the engines' coefficients: one generic prior for all, each endpoint's published profile, or the hidden truth."""

Shared = Literal["bookings", "events", "residency"]
"""Bookings: who placed what where. Events: what the engines cache. Residency: which adapters were booked where."""
EVERYTHING: Final[frozenset[Shared]] = frozenset({"bookings", "events", "residency"})

FRESH_MS: Final = 25.0
"""Between two readings where telemetry is fresh; no delay."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How poolpilot runs."""

    knowledge: Knowledge = "generic"
    first_tokens: bool = False
    """Sees the first token of every answer (response bodies streamed), not of a sample."""
    true_lengths: bool = False
    exact_cache: bool = False
    fresh: bool = False
    histograms: bool = True
    """Without them nothing is learned of the endpoints' speed."""
    telemetry: bool = True
    shares: frozenset[Shared] = frozenset()
    """What several pickers tell each other, at once."""
    parameters: PredictedFinishParameters = field(default_factory=PredictedFinishParameters)

    def world(self, world: World) -> World:
        """The world as far as this variant changes what reaches the picker."""
        if self.shares == EVERYTHING:
            world = replace(world, pickers=1)
        return replace(world, scrape_ms=FRESH_MS, telemetry_delay_ms=0.0) if self.fresh else world


def _without(**parameters: Any) -> Variant:
    return Variant(parameters=PredictedFinishParameters(**parameters))


PLAIN: Final = Variant()
PROFILE: Final = Variant(knowledge="profile")

LADDER: Final[dict[str, Variant]] = {
    POOLPILOT: PLAIN,
    f"{POOLPILOT}+first-tokens": Variant(first_tokens=True),
    f"{POOLPILOT}+true-lengths": Variant(true_lengths=True),
    f"{POOLPILOT}+fresh-metrics": Variant(fresh=True),
    f"{POOLPILOT}+exact-cache": Variant(exact_cache=True),
    f"{POOLPILOT}+profile": PROFILE,
    f"{POOLPILOT}+true-coefficients": Variant(knowledge="true"),
    f"{POOLPILOT}+all": Variant("true", first_tokens=True, true_lengths=True, exact_cache=True, fresh=True),
}
ABLATION: Final[dict[str, Variant]] = {
    POOLPILOT: PLAIN,
    f"{POOLPILOT}-wait": _without(use_wait=False),
    f"{POOLPILOT}-cache": _without(use_cache=False),
    f"{POOLPILOT}-own-decode": _without(own_decode_weight=0.0),
    f"{POOLPILOT}-delay-prefill": _without(others_weight=0.0),
    f"{POOLPILOT}-backlog": _without(backlog_ms=math.inf),
    f"{POOLPILOT}-fleet-share": _without(fleet_share=0.0),
    f"{POOLPILOT}-wait-weight": _without(wait_weight=1.0),
    f"{POOLPILOT}-hit-wait": _without(hit_wait_weight=math.inf),
    f"{POOLPILOT}-slow-start": _without(slow_start_weight=0.0),
    f"{POOLPILOT}-eviction": _without(eviction_weight=0.0),
    f"{POOLPILOT}-kv-barrier": _without(kv_barrier_ms=0.0),
    f"{POOLPILOT}-adapter-load": _without(adapter_load_ms=0.0),
    f"{POOLPILOT}-adapter-eviction": _without(adapter_eviction_weight=0.0),
    f"{POOLPILOT}-adapter-slot": _without(adapter_slot_weight=0.0),
    f"{POOLPILOT}-residuals": Variant(histograms=False),
    f"{POOLPILOT}-telemetry": Variant(telemetry=False),
}
SHARING: Final[dict[str, Variant]] = {
    POOLPILOT: PLAIN,
    f"{POOLPILOT}+shared-bookings": Variant(shares=frozenset({"bookings"})),
    f"{POOLPILOT}+shared-events": Variant(shares=frozenset({"events"})),
    f"{POOLPILOT}+shared-residency": Variant(shares=frozenset({"residency"})),
    f"{POOLPILOT}+shared-all": Variant(shares=EVERYTHING),
}
ALL: Final[dict[str, Variant]] = LADDER | ABLATION | SHARING


class TrueLengths(OutputLengths):
    """Knows how long every answer will be: the request's limit is it."""

    @override
    def expected(self, model: str, tenant: str, max_tokens: int | None) -> float:
        """The limit."""
        return float(max_tokens) if max_tokens is not None else super().expected(model, tenant, None)


class ExactCache:
    """A prefix index that looks into the engines. `slots`: slot → engine; the rest is the index it stands before."""

    def __init__(self, index: Any, engines: list[Engine]) -> None:
        self._index = index
        self._engines = engines
        self.slots: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def match(self, chain: PrefixChain, most: float = float("inf")) -> Floats:
        """Tokens that each engine would find now."""
        found = np.zeros(len(self._index.tokens()))
        for slot, engine in self.slots.items():
            count = self._engines[engine].blocks.match(chain.hashes, len(chain.hashes))
            found[slot] = min(most, chain.covered(count))
        return found
