"""Who holds requests back until they may go, as the pool and the exchange see it. `FlowControl` is one.

A request that must wait is a `Ticket`; who waits for it is its `Waiter`, told exactly once what became of it, unless it
has withdrawn the ticket before.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from poolpilot_picker.requests.request import InferenceRequest

if TYPE_CHECKING:
    from poolpilot_picker.errors import RequestRefused
    from poolpilot_picker.flow.pool import Placement


class QueueOutcome(StrEnum):
    """What became of a request that came to flow control: the label `outcome` of its metrics, in llm-d's words."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    """The queue was full, or the request was shed."""
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    REJECTED_OTHER = "RejectedOther"
    """A tenant's limit, its share of the queue too, or a fault."""
    EVICTED_TTL = "EvictedTTL"
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    """Its time was over while the pool had no endpoints."""
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    """Its client went away."""
    EVICTED_OTHER = "EvictedOther"
    """A more valuable request took its place, or the picker shut down."""


class Waiter(Protocol):
    """Holds the exchange of a waiting request."""

    def dispatched(self, placement: Placement, now: float) -> None:
        """The request was placed and booked."""
        ...

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        """The request will not be placed."""
        ...

    def unplaceable(self, now: float) -> None:
        """Choosing failed by a fault of ours, the exception at hand: place it in some other way."""
        ...


class Bodies(Protocol):
    """What the picker holds of request bodies, arriving ones among them."""

    @property
    def full(self) -> bool:
        """Nothing more should wait."""
        ...


class Ticket(msgspec.Struct, kw_only=True, eq=False):
    """One request in the queue. Times in ms; `flow` is the queue's own."""

    request: InferenceRequest
    waiter: Waiter
    arrived_ms: float
    tenant: str
    priority: int
    size_bytes: int
    """Of the body, which is held meanwhile."""
    cost: float
    """Estimated, in uncached prompt tokens (`flow.charges`)."""
    uncached_tokens: float
    ttl_ms: float
    expires_ms: float = 0.0
    overdue_ms: float = 0.0
    """From then on it goes ahead of what came later, whatever its priority."""
    lane: object = None
    """Equal for those that can use the same room: a head without room holds up only its own lane."""
    sequence: int = 0
    """Place in the order of arrival."""
    flow: Any = None
    """The `TenantFlow` it stands in; None: in none."""
    why: str = ""
    """What it waits for, in words, for the receipt."""


class Holder(Protocol):
    """Flow control of one pool."""

    def submit(self, request: InferenceRequest, waiter: Waiter, now: float) -> Placement | Ticket:
        """Places the request, or holds it. Raises RequestRefused."""
        ...

    def withdraw(self, ticket: Ticket, outcome: QueueOutcome, now: float) -> None:
        """Nobody waits for the ticket any more."""
        ...

    def patience_ms(self, ticket: Ticket) -> float:
        """How long the data plane must wait for the answer, at most."""
        ...

    def finished(self, placement: Placement, now: float) -> None:
        """A placed request has ended. Told before its booking is released; again does nothing."""
        ...

    def retried(self, attempts: int) -> None:
        """The data plane took so many attempts for a request."""
        ...

    def unserved(self, request: InferenceRequest, now: float) -> None:
        """The exchange of a request has ended, and no pod has answered it 2xx."""
        ...

    def wake(self) -> None:
        """There may be room now."""
        ...
