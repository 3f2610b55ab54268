"""Makes the cost of a decision with the core in force: compiled, or the reference. Used by the default policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker import compiled
from poolpilot_picker.routing.cost_model import CostModel

if TYPE_CHECKING:
    from poolpilot_picker.routing.cost_model import Cost, CostParameters
    from poolpilot_picker.routing.view import DecisionView


class Pricing:
    """The cost with one set of constants."""

    __slots__ = ("_core", "_formula", "_parameters")

    def __init__(self, parameters: CostParameters) -> None:
        self._parameters = parameters
        self._core = compiled.in_force
        self._formula = self._core.cost(parameters) if self._core is not None else None

    def cost(self, view: DecisionView) -> Cost:
        """What the request of a view costs at every endpoint."""
        core, formula, columns = self._core, self._formula, view.table.columns
        if core is None or formula is None or not isinstance(columns, core.columns):
            return CostModel(view, self._parameters)
        request, adapters = view.request, view.adapters
        adapter = None
        if view.adapter:
            until, taken = adapters.scarcity(view.adapter)
            resident = adapters.resident_mask(view.adapter)
            adapter = (resident, until, taken, adapters.loaded_slots(), adapters.adapter_slots(), *view.adapter_home)
        return formula.price(
            columns,
            view.now,
            request.prompt_tokens,
            request.sequences,
            view.expected_output,
            view.expected_rest,
            request.slo_ttft_ms,
            view.hit_share,
            view.stale_after_ms,
            view.mask,
            view.cached_tokens if view.home is None else view.likely_tokens,
            view.indexed_tokens,
            adapter,
            view.lent,
            view.reuse,
        )
