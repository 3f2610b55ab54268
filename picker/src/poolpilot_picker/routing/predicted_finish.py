"""The default policy: where the request finishes first, counting what it costs the others. Owns cost in ms and ties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_picker.routing.cost_model import CostModel, CostParameters

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats

TIE_MS: Final = 1e-9
"""Costs this close are equal."""


class PredictedFinishParameters(CostParameters, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Constants of the cost, and how many endpoints are named in the destination header."""

    max_num_of_endpoints: int = 1
    """The first is chosen and booked; the others are ordered fallbacks for the data plane's retries."""


class PredictedFinishPicker:
    """Picks the smallest cost; ties at random. Scores of scorers beside it are a discount of up to the best cost."""

    def __init__(self, parameters: PredictedFinishParameters | None = None) -> None:
        self.parameters = parameters or PredictedFinishParameters()

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots by increasing cost."""
        return self._by_cost(view, scores)

    def pick_unscored(self, view: DecisionView) -> list[int]:
        """Slots by increasing cost."""
        return self._by_cost(view, None)

    def _by_cost(self, view: DecisionView, scores: Floats | None) -> list[int]:
        model = CostModel(view, self.parameters)
        view.cost = model
        candidates = view.mask.nonzero()[0]
        costs = model.total[candidates]
        discounts = None if scores is None else scores[candidates]
        if discounts is not None and discounts[discounts.argmax()] > 0.0:
            costs = costs - discounts * float(costs.min())
        best = int(costs.argmin())
        ties = (costs <= costs[best] + TIE_MS).nonzero()[0]
        if len(ties) > 1:
            best = int(ties[view.rng.randrange(len(ties))])
        chosen = [int(candidates[best])]
        while len(chosen) < self.parameters.max_num_of_endpoints and len(chosen) < len(candidates):
            costs[best] = np.inf
            best = int(costs.argmin())
            chosen.append(int(candidates[best]))
        return chosen


class PredictedFinishScorer:
    """The same cost as a score among others: best cost over cost, in (0, 1]."""

    def __init__(self, parameters: PredictedFinishParameters | None = None) -> None:
        self.parameters = parameters or PredictedFinishParameters()

    def score(self, view: DecisionView) -> Floats:
        """1.0 for the cheapest candidate."""
        model = CostModel(view, self.parameters)
        view.cost = model
        best = float(model.total[view.mask].min())
        score: Floats = np.maximum(best, 1e-6) / np.maximum(model.total, 1e-6)
        return score
