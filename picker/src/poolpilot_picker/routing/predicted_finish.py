"""The default policy: the endpoint where the request finishes first, counting what it costs the others. Owns cost in ms, guards and ties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_picker.routing.cost_model import CostModel, CostParameters

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats


class PredictedFinishParameters(CostParameters, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Constants of the cost, and how many endpoints are named in the destination header."""

    max_num_of_endpoints: int = 3
    """The first is chosen and booked; the others are ordered fallbacks for the data plane's retries."""


class PredictedFinishPicker:
    """Picks the smallest cost; exact ties at random. Scores of scorers beside it are taken as a discount of up to the best cost."""

    def __init__(self, parameters: PredictedFinishParameters | None = None) -> None:
        self.parameters = parameters or PredictedFinishParameters()

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots by increasing cost."""
        model = CostModel(view, self.parameters)
        view.cost = model
        view.terms.update(model.terms)
        total = model.total
        candidates = view.mask.nonzero()[0]
        costs = total[candidates]
        if scores[candidates].any():
            costs = costs - scores[candidates] * float(costs.min())
        view.terms["cost"] = total
        wanted = min(self.parameters.max_num_of_endpoints, len(candidates))
        best = costs.min()
        ties = (costs <= best + 1e-9).nonzero()[0]
        first = int(ties[view.rng.randrange(len(ties))]) if len(ties) > 1 else int(costs.argmin())
        chosen = [int(candidates[first])]
        if wanted > 1:
            costs[first] = np.inf
            chosen += [int(candidates[index]) for index in np.argsort(costs, kind="stable")[: wanted - 1]]
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
        return np.maximum(best, 1e-6) / np.maximum(model.total, 1e-6)
