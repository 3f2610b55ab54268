"""Fewest requests in flight by the balancer's own count, ties at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class LeastRequest(Stateless):
    """Own in-flight count only: other pickers' requests are not seen."""

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest count."""
        return lowest(view, view.table.requests)


BASELINE = Baseline(
    name="least-request",
    source="nginx least_conn, HAProxy leastconn, llm-d active-request-scorer",
    build=lambda _: LeastRequest(),
)
