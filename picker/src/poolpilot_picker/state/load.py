"""How loaded each endpoint is now: our own account and what others were seen to have there. Read by every decision.

The scraped gauges are corrected in both directions for what we placed and finished since: own sequences are always
those of the ledger, and of the gauges only what cannot be ours remains (`foreign`, written when a sample is applied).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.state.endpoints import EndpointTable, Floats, Mask


class LoadEstimate:
    """Per slot: sequences at the endpoint, ours and others'. Unknown is neither idle nor excluded.

    A sample counts in full until half of `stale_after_ms`; from there to `stale_after_ms` the median of the pool's
    fresh endpoints takes its place bit by bit. Where nothing is fresh, only our own account is left.

    With several `pickers`, half of what others have there is taken to be (pickers − 1) × our own: on old samples all
    pickers would run to the same endpoint.
    """

    __slots__ = ("any_foreign", "foreign", "other_kv", "sequences", "unknown")

    def __init__(self, table: EndpointTable, now: float, stale_after_ms: float, pickers: int = 1) -> None:
        own, heard, foreign = table.inflight, table.load_ms, table.foreign
        self.unknown: Mask
        """Never heard from, or stale."""
        self.other_kv: Floats = table.other_kv_tokens
        """KV tokens held besides what our bookings add; 0 where unknown."""
        if len(heard) and now - heard[heard.argmin()] > 0.5 * stale_after_ms:
            age = now - heard
            self.unknown = age > stale_after_ms
            self.other_kv = np.where(self.unknown, 0.0, self.other_kv)
            foreign = _faded(table, foreign, age / stale_after_ms, self.unknown)
        else:
            self.unknown = np.zeros(len(heard), dtype=np.bool_)
        if pickers > 1:
            foreign = 0.5 * foreign + (0.5 * (pickers - 1)) * own
        self.foreign: Floats = foreign
        """Sequences placed by others: other pickers, direct clients."""
        self.any_foreign = bool(len(foreign) and foreign[foreign.argmax()] > 0.0)
        self.sequences: Floats = own + foreign


def _faded(table: EndpointTable, foreign: Floats, age: Floats, unknown: Mask) -> Floats:
    """`foreign`, replaced by the peers' median as far as it is old; `age` in units of what counts as stale."""
    fresh = np.sort(foreign[table.eligible & ~unknown])
    # By hand: numpy's median takes longer than all the rest of a decision.
    peers = 0.5 * float(fresh[(len(fresh) - 1) // 2] + fresh[len(fresh) // 2]) if len(fresh) else 0.0
    trust = np.minimum(np.maximum(2.0 - 2.0 * age, 0.0), 1.0)
    faded: Floats = trust * foreign + (1.0 - trust) * peers
    return faded
