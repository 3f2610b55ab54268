"""How loaded each endpoint is now: the last sample corrected by what we placed and finished since. Read by every decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.state.endpoints import EndpointTable, Floats


class LoadEstimate:
    """Per slot: sequences at the endpoint, ours and others'. Unknown is neither idle nor excluded."""

    __slots__ = ("foreign", "running", "sequences", "unknown", "waiting")

    def __init__(self, table: EndpointTable, now: float, stale_after_ms: float) -> None:
        own = table.inflight
        fresh = now - table.sample_ms <= stale_after_ms
        scraped = np.where(np.isnan(table.running), 0.0, table.running)
        queued = np.where(np.isnan(table.waiting), 0.0, table.waiting)
        corrected = (
            scraped
            + queued
            - (table.finished_total - table.finished_at_sample)
            + (table.placed_total - table.placed_at_sample)
        )
        known = fresh & ~np.isnan(table.running)
        foreign = np.where(known, np.maximum(corrected - own, 0.0), 0.0)
        if not known.all() and known.any():
            # Never heard from, or stale: our own bookings plus what its peers carry besides ours.
            peers = table.eligible & known
            if peers.any():
                foreign = np.where(known, foreign, np.median(foreign[peers]))
        self.foreign: Floats = foreign
        """Sequences placed by others: other pickers, direct clients."""
        self.sequences: Floats = own + foreign
        self.running: Floats = scraped
        self.waiting: Floats = queued
        self.unknown = ~known
