"""The default policy: where the request finishes first, counting what it costs the others. Owns cost in ms and ties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_picker.routing.cost_model import TIE_MS, CostParameters
from poolpilot_picker.routing.pricing import Pricing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats


class PredictedFinishParameters(CostParameters, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Constants of the cost, and how many endpoints are named in the destination header."""

    max_num_of_endpoints: int = 1
    """The first is chosen and booked; the others are ordered fallbacks for the data plane's retries."""


class PredictedFinishPicker:
    """Picks the smallest cost; ties at random. Scores of scorers beside it are a discount of up to the best cost."""

    weighs_waits = True
    """What a request would wait for at an endpoint is part of what is compared."""

    def __init__(self, parameters: PredictedFinishParameters | None = None) -> None:
        self.parameters = parameters or PredictedFinishParameters()
        self._pricing = Pricing(self.parameters)

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots by increasing cost."""
        cost = view.cost = self._pricing.cost(view)
        candidates = view.mask.nonzero()[0]
        costs, discounts = cost.total[candidates], scores[candidates]
        if discounts[discounts.argmax()] > 0.0:
            costs = costs - discounts * float(costs.min())
        best = int(costs.argmin())
        ties = (costs <= costs[best] + TIE_MS).nonzero()[0]
        if len(ties) > 1:
            best = int(ties[view.rng.randrange(len(ties))])
        return self._with_fallbacks(best, candidates, costs)

    def pick_unscored(self, view: DecisionView) -> list[int]:
        """Slots by increasing cost."""
        cost = view.cost = self._pricing.cost(view)
        best = cost.cheapest(view.mask, view.rng)
        if self.parameters.max_num_of_endpoints == 1:
            return [best]
        candidates = view.mask.nonzero()[0]
        return self._with_fallbacks(int(candidates.searchsorted(best)), candidates, cost.total[candidates])

    def _with_fallbacks(self, best: int, candidates: NDArray[np.intp], costs: Floats) -> list[int]:
        """The candidate at `best`, and as many others by cost as are named."""
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
        self._pricing = Pricing(self.parameters)

    def score(self, view: DecisionView) -> Floats:
        """1.0 for the cheapest candidate."""
        cost = view.cost = self._pricing.cost(view)
        best = float(cost.total[view.mask].min())
        score: Floats = np.maximum(best, 1e-6) / np.maximum(cost.total, 1e-6)
        return score
