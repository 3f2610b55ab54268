"""What a baseline is, and what several of them share: the lowest of some costs, and profiles of llm-d's plugins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec
import numpy as np

from poolpilot_lab.sim.router import Sampling
from poolpilot_lab.sim.telemetry import EVERYTHING_MS
from poolpilot_picker.config.load import load
from poolpilot_picker.config.schema import API_VERSION, KIND
from poolpilot_picker.routing.pipeline import PluginGuard, Profile
from poolpilot_picker.routing.registry import build_profile, default_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolpilot_lab.sim.world import World
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats

_REGISTRY: Final = default_registry()


def _fail(sentence: str) -> None:
    raise RuntimeError(sentence)


def strict() -> PluginGuard:
    """In the picker a failing plugin is left out of a decision; here it must end the run."""
    return PluginGuard(log=_fail)


class Rule(Protocol):
    """How a baseline decides: a policy of its own, or a profile of llm-d's plugins."""

    def decide(self, view: DecisionView) -> list[int]:
        """The slot to use, in a list."""
        ...

    def placed(self, view: DecisionView, slot: int) -> None:
        """What was booked."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A rule that learns from answers."""

    def first_token(self, request_id: str, ttft_ms: float) -> None:
        """The first token of an answer was seen."""
        ...

    def answered(self, request_id: str, tpot_ms: float) -> None:
        """An answer ended."""
        ...


class RulePicker:
    """A rule as the picker of a profile: so it runs where any configured policy runs."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """As the rule says."""
        return self.rule.decide(view)

    def pick_unscored(self, view: DecisionView) -> list[int]:
        """The same: it never looks at scores."""
        return self.rule.decide(view)

    def placed(self, view: DecisionView, slot: int) -> None:
        """Told to the rule."""
        self.rule.placed(view, slot)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A policy to compare with. `source`: where its rule comes from and what of it is our reading."""

    name: str
    source: str
    build: Callable[[World], Rule]
    first_tokens: bool = False
    """The peer forwards the answers, so it sees the first token of each."""
    sampling: Sampling = Sampling.GAUGES
    """What of telemetry its rule reads."""
    scrape_ms: float = EVERYTHING_MS
    """Between two readings of an endpoint, where the scenario does not set it; seldom where the rule reads no gauge."""

    def policy(self, world: World) -> Profile:
        """What a pool runs."""
        rule = self.build(world)
        if isinstance(rule, Profile):
            return rule
        picker = RulePicker(rule)
        return Profile("default", picker=(self.name, picker), observers=[(self.name, picker)], guard=strict())


class Stateless:
    """A policy that remembers nothing of its placements."""

    def placed(self, view: DecisionView, slot: int) -> None:
        """Nothing to note."""


def or_nothing(gauge: Floats) -> Floats:
    """An endpoint that never told counts as 0."""
    told: Floats = np.where(np.isnan(gauge), 0.0, gauge)
    return told


def lowest(view: DecisionView, costs: Floats) -> list[int]:
    """The candidate with the lowest cost; equal ones at random."""
    # As `best_first(-costs, view.mask, 1, view.rng)` does, without arrays: there are a handful of endpoints.
    best, ties = math.inf, []
    for slot, (cost, allowed) in enumerate(zip(costs.tolist(), view.mask.tolist(), strict=True)):
        if not allowed:
            continue
        if cost < best:
            best, ties = cost, [slot]
        elif cost == best:
            ties.append(slot)
    return ties if len(ties) <= 1 else [ties[view.rng.randrange(len(ties))]]


def llmd(*plugins: tuple[str, float | None, Mapping[str, object]]) -> Profile:
    """A profile of plugins (type, weight of a scorer, parameters), as an llm-d configuration file would make it."""
    entries = [{"type": kind, "parameters": dict(parameters)} for kind, _, parameters in plugins]
    references = [
        {"pluginRef": kind} if weight is None else {"pluginRef": kind, "weight": weight} for kind, weight, _ in plugins
    ]
    text = msgspec.json.encode(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "plugins": entries,
            "schedulingProfiles": [{"name": "default", "plugins": references}],
        }
    )
    return build_profile(load(text.decode(), _REGISTRY), strict())
