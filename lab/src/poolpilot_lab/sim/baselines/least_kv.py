"""Smallest share of the KV cache in use, by the last reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.sim.baselines.base import Baseline, Stateless, lowest, or_nothing

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView


class LeastKv(Stateless):
    """An endpoint that never told counts as empty."""

    def decide(self, view: DecisionView) -> list[int]:
        """Lowest usage."""
        return lowest(view, or_nothing(view.table.kv_usage))


BASELINE = Baseline(
    name="least-kv",
    source="AIBrix least-kv-cache; read every 50 ms as there",
    build=lambda _: LeastKv(),
    scrape_ms=50.0,
)
