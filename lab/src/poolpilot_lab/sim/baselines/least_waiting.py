"""Fewest requests waiting in the engine by the last reading, then fewest running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest, or_nothing

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class LeastWaiting(Stateless):
    """By telemetry alone: what was placed since the reading is not seen."""

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest queue, then lowest batch."""
        table = view.table
        return lowest(view, table.queued * 1e6 + or_nothing(table.running))


BASELINE = Baseline(
    name="least-waiting",
    source="GIE's first picker (least queued), Kthena least-request without in-flight; read every 50 ms",
    build=lambda _: LeastWaiting(),
    scrape_ms=50.0,
)
