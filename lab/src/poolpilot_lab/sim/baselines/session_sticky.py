"""Sessions stay where they began; a new session, or a request without one, goes where the fewest requests are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.sim.baselines.base import Baseline, lowest

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Endpoint


class SessionSticky:
    """Bound for the whole run; rebound when the endpoint is gone."""

    def __init__(self) -> None:
        self._bound: dict[str, Endpoint] = {}

    def decide(self, view: DecisionView) -> list[int]:
        """The session's endpoint."""
        endpoint = self._bound.get(view.request.routing_key)
        if endpoint is not None and view.table.holds(endpoint) and view.mask[endpoint.slot]:
            return [endpoint.slot]
        return lowest(view, view.table.requests)

    def placed(self, view: DecisionView, slot: int) -> None:
        """Binds."""
        if view.request.routing_key:
            self._bound[view.request.routing_key] = view.table.at(slot)


BASELINE = Baseline(
    name="session-sticky",
    source="vLLM router sticky_least_loaded, llm-d session-affinity with active-request-scorer",
    build=lambda _: SessionSticky(),
)
