"""Requests that came while a pool had no endpoints: what starts the first one, where nothing is held back.

A rate sees nothing of a series that begins with its first event, so this one begins with the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker.errors import NoEndpoints

if TYPE_CHECKING:
    from poolpilot_picker.instruments.metrics import PickerMetrics


def unserved(metrics: PickerMetrics, pool: str) -> None:
    """Begins their counter, at zero."""
    metrics.refused.labels(pool, NoEndpoints.code, NoEndpoints.default_reason or "")
