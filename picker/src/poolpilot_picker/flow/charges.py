"""What a request costs its tenant: in units of one uncached prompt token, by what the pool's engines are known to need.

An output token is dearer than a prompt token by as much as a step of decoding, shared by its batch, takes longer than
the token's share of a prefill; it is dearer in a long context. Cached prompt tokens cost nothing but that.
Charged when a request is dispatched, by estimates; corrected when it ends (VTC, OSDI '24, section 4.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from poolpilot_picker.state.ledger import Phase

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Placement
    from poolpilot_picker.state.endpoints import EndpointTable

REFRESH_MS: Final = 1_000.0
LEAST_BATCH: Final = 8.0
"""A nearly idle engine decodes for nearly nobody: without a floor its tokens would seem precious."""
LEAST_OUTPUT: Final = 1.0
MOST_OUTPUT: Final = 64.0
"""Bounds on the price of an output token: a wrong profile must not turn fairness upside down."""


class Prices(msgspec.Struct, frozen=True):
    """Of one pool. The defaults are those of VTC's evaluation: an output token is worth two prompt tokens."""

    output: float = 2.0
    """Of an output token."""
    context: float = 0.0
    """Added to it for each token of context."""

    def cost(self, uncached: float, prompt: float, output: float, sequences: float) -> float:
        """Of a request: `uncached` of its `prompt` tokens computed, `output` tokens per sequence generated."""
        return uncached + sequences * output * min(MOST_OUTPUT, self.output + self.context * prompt)


class PriceList:
    """The prices of a pool, read off its step models once a second."""

    __slots__ = ("_next_ms", "_prices")

    def __init__(self) -> None:
        self._next_ms = -np.inf
        self._prices = Prices()

    def at(self, table: EndpointTable, now: float) -> Prices:
        """Of this moment."""
        if now >= self._next_ms:
            self._next_ms = now + REFRESH_MS
            self._prices = _read(table)
        return self._prices


def _read(table: EndpointTable) -> Prices:
    mask = table.eligible
    if not mask.any():
        return Prices()
    token = float(table.token_ms[mask].mean())
    if token <= 0.0:
        return Prices()
    batch = max(LEAST_BATCH, float(table.inflight[mask].mean()))
    output = (float(table.step_ms[mask].mean()) / batch + float(table.sequence_ms[mask].mean())) / token
    context = float(table.context_ms[mask].mean()) / token
    return Prices(output=min(MOST_OUTPUT, max(LEAST_OUTPUT, output)), context=max(0.0, context))


class Charge(msgspec.Struct, eq=False):
    """What was charged for one dispatched request, until it is settled."""

    flow: Any
    """The `TenantFlow` whose counter bears it."""
    account: Any
    """The `TenantAccount` whose budget bears it."""
    prices: Prices
    cost: float
    tokens: float
    """Charged to the tenant's budget."""
    sequences: int
    short: bool
    """Counted among the short requests in flight (`flow.short_lane`)."""
    settled: bool = False


def generated(placement: Placement, table: EndpointTable, now: float) -> float:
    """Output tokens of all sequences: counted, or by the time since the first one and the engine's step time."""
    if placement.output_tokens is not None:
        return placement.output_tokens
    request, booking = placement.request, placement.booking
    slot = booking.endpoint.slot
    if booking.phase is Phase.RELEASED or slot >= len(table) or table.slots[slot] is not booking.endpoint:
        return request.sequences * placement.predicted.output_tokens
    running_ms = now - booking.first_ms
    if running_ms <= 0.0:
        return 0.0
    each = running_ms / max(1e-6, table.columns.step(slot, 0.0))
    most = request.max_tokens if request.max_tokens is not None else 4.0 * placement.predicted.output_tokens
    return request.sequences * min(each, float(most))
