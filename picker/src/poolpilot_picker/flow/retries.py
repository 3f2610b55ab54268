"""The retry budget: the data plane may try again only while retries, clients' own among them, stay a small share of the
requests.

A token bucket (as gRPC's retry throttling and Envoy's retry_budget): each dispatched request adds a share of a token,
each attempt beyond the first takes one. Without a budget, retries of a failing pool multiply the load that fails it.
"""

from __future__ import annotations

from typing import Final

import msgspec

DEBT: Final = 10.0
"""Times the burst that may be owed: what was on its way when the budget ended may be retried too."""


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pool."""

    share: float = 0.2
    """Retries per request, in the long run."""
    burst: float = 10.0
    """Retries that may come at once."""


class RetryBudget:
    """What is left for retries; negative where more were made than there was room for."""

    __slots__ = ("_settings", "left")

    def __init__(self, settings: RetrySettings) -> None:
        self._settings = settings
        self.left = settings.burst

    def request(self) -> bool:
        """A request is dispatched; True where it may be retried."""
        settings, left = self._settings, self.left
        if left < settings.burst:
            self.left = min(settings.burst, left + settings.share)
        return left >= 1.0

    def retried(self, attempts: int) -> None:
        """A request took so many attempts."""
        self.left = max(-DEBT * self._settings.burst, self.left - max(0, attempts - 1))
