"""The less loaded of two endpoints drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.sim.baselines.base import Baseline, Stateless

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class PowerOfTwo(Stateless):
    """By own in-flight count."""

    def decide(self, view: DecisionView) -> list[int]:
        """The winner of the two."""
        candidates = view.mask.nonzero()[0].tolist()
        drawn = view.rng.sample(candidates, min(2, len(candidates)))
        return [min(drawn, key=lambda slot: float(view.table.requests[slot]))]


BASELINE = Baseline(
    name="power-of-two",
    source="Mitzenmacher 2001; Envoy LEAST_REQUEST with choice_count 2",
    build=lambda _: PowerOfTwo(),
)
