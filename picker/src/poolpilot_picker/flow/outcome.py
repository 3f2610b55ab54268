"""How an exchange ended, as far as the picker can tell. Decides what is learned when the booking is released."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """Only SERVED teaches; FAILED, OVERLOADED, UNREACHABLE and TIMED_OUT count against the endpoint; the rest say
    nothing of it."""

    SERVED = "served"
    """A pod provably answered 2xx."""
    REJECTED = "rejected"
    """A pod provably answered 3xx or 4xx."""
    FAILED = "failed"
    """A pod provably answered 5xx."""
    OVERLOADED = "overloaded"
    """A pod provably answered 503 and when to come again: it is full, not broken."""
    UNREACHABLE = "unreachable"
    """The connection to the pod failed or was reset before its answer began."""
    TIMED_OUT = "timed_out"
    """The data plane gave up waiting for the pod."""
    LOCAL_REPLY = "local_reply"
    """The data plane answered itself: a filter behind the picker, no host, no route."""
    UNCONFIRMED = "unconfirmed"
    """An answer without proof of who gave it (a data plane that sends no attributes)."""
    ABORTED = "aborted"
    """The exchange ended before response headers: client gone, internal redirect."""


ANSWERED_BY_POD = frozenset({Outcome.SERVED, Outcome.REJECTED, Outcome.FAILED, Outcome.OVERLOADED})
EJECTS = frozenset({Outcome.FAILED, Outcome.UNREACHABLE, Outcome.TIMED_OUT})
"""What may have an endpoint left out for a while."""
AGAINST_ENDPOINT = EJECTS | {Outcome.OVERLOADED}
"""What makes an endpoint dearer for a while."""
