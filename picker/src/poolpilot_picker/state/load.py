"""How loaded each endpoint is now: our own account and what others were seen to have there. Read by every decision.

The scraped gauges are corrected in both directions for what we placed and finished since: own sequences are always
those of the ledger, and of the gauges only what cannot be ours remains (`foreign`, written when a sample is applied).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolpilot_picker.state.endpoints import EndpointTable, Floats, Mask


class LoadEstimate:
    """Per slot: sequences at the endpoint, ours and others'. Unknown is neither idle nor excluded.

    A sample counts in full until half of `stale_after_ms`; from there to `stale_after_ms` the median of the pool's
    fresh endpoints takes its place bit by bit. Where nothing is fresh, only our own account is left.

    `expected`: not what was told, but what is probably there by now. Others are mostly pickers like this one, see the
    same samples, and have placed more since: on samples alone all would run to the endpoint that last seemed idle. So
    a fresh sample counts half, one of two seconds not at all; the rest is what they usually have at the endpoint, times
    how many more of ours there are now than usually.
    """

    __slots__ = ("foreign", "other_kv", "sequences", "unknown")

    def __init__(self, table: EndpointTable, now: float, stale_after_ms: float, *, expected: bool = False) -> None:
        foreign, other_kv, unknown = table.columns.load(now, stale_after_ms, expected)
        self.foreign: Floats = foreign
        """Sequences placed by others: other pickers, direct clients."""
        self.other_kv: Floats = other_kv
        """KV tokens held besides what our bookings add; 0 where unknown."""
        self.unknown: Mask = unknown
        """Never heard from, or stale."""
        self.sequences: Floats = table.inflight + foreign

    @property
    def any_foreign(self) -> bool:
        """Somebody else's sequences are somewhere."""
        return bool(len(self.foreign) and self.foreign[self.foreign.argmax()] > 0.0)
