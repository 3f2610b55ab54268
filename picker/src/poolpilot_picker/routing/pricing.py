"""Makes the cost of a decision with the core in force: compiled, or the reference. Used by the default policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_picker import compiled
from poolpilot_picker.routing.cost_model import TIE_MS, CostModel
from poolpilot_picker.routing.decision import Forecast

if TYPE_CHECKING:
    import random

    from poolpilot_picker.compiled import Core
    from poolpilot_picker.compiled._cost import Cost as Formula
    from poolpilot_picker.routing.cost_model import Cost, CostParameters
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.columns import Floats, Mask


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
        slots = len(view.mask)
        rows = np.empty((core.out_rows, slots))
        load = None
        if view.load_made or not columns.all_heard(view.now - 0.5 * view.stale_after_ms):
            load = (view.load.foreign, view.load.other_kv)
        adapter = None
        if view.adapter:
            resident = adapters.resident_mask(view.adapter)
            adapter = (resident, adapters.busy_slots(), adapters.loaded_slots(), adapters.adapter_slots())
        matter = formula.fill(
            columns,
            view.now,
            request.prompt_tokens,
            request.sequences,
            view.expected_output,
            view.expected_rest,
            request.slo_ttft_ms,
            view.hit_share,
            view.pickers,
            view.cached_tokens,
            view.indexed_tokens,
            load,
            adapter,
            rows,
        )
        return CompiledCost(core, formula, rows, matter, view.expected_output)


class CompiledCost:
    """What the compiled core wrote of one decision."""

    __slots__ = ("_core", "_formula", "_matter", "_output", "_rows")

    def __init__(self, core: Core, formula: Formula, rows: Floats, matter: int, output: float) -> None:
        self._core = core
        self._formula = formula
        self._rows = rows
        self._matter = matter
        """Bit n: the term in row n is somewhere not 0."""
        self._output = output

    @property
    def terms(self) -> dict[str, Floats]:
        """Name → ms, one element per slot."""
        return {name: self._rows[row] for row, name in enumerate(self._core.terms) if self._matter >> row & 1}

    @property
    def total(self) -> Floats:
        """The sum of the terms, one element per slot."""
        total: Floats = self._rows[self._core.total_row]
        return total

    def cheapest(self, mask: Mask, rng: random.Random) -> int:
        """The slot of the smallest cost among at least one candidate; ties at random."""
        best, ties = self._formula.cheapest(self._rows, mask, TIE_MS)
        if ties > 1:
            return self._formula.tied(self._rows, mask, TIE_MS, best, rng.randrange(ties))
        return best

    def forecast(self, slot: int) -> Forecast:
        """What is predicted for the request on one endpoint."""
        wait, prefill, adapter, step, uncached = self._formula.predicted(self._rows, slot)
        return Forecast(wait, prefill, adapter, step, self._output, uncached)
