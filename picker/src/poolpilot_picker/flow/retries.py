"""The retry budget: fallbacks are named to the data plane only while retries stay a small share of the requests.

A token bucket (as gRPC's retry throttling and Envoy's retry_budget): each dispatched request adds a share of a token,
each attempt beyond the first takes one. Without a budget, retries of a failing pool multiply the load that fails it.
"""

from __future__ import annotations

import msgspec


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pool."""

    share: float = 0.2
    """Retries per request, in the long run."""
    burst: float = 10.0
    """Retries that may come at once."""


class RetryBudget:
    """What is left for retries. Never negative."""

    __slots__ = ("_settings", "left")

    def __init__(self, settings: RetrySettings) -> None:
        self._settings = settings
        self.left = settings.burst

    def request(self) -> bool:
        """A request is dispatched; True where it may have fallbacks."""
        settings = self._settings
        allowed = self.left >= 1.0
        self.left = min(settings.burst, self.left + settings.share)
        return allowed

    def retried(self, attempts: int) -> None:
        """A request took so many attempts."""
        self.left = max(0.0, self.left - max(0, attempts - 1))
