"""Endpoints that joined a pool at work: for a while they count as loaded as the others. Read by every decision.

An empty endpoint among busy ones looks cheap to every request at once: within a second it gets more prompts than it can
prefill, of which nobody knows yet how fast it is. What it lacks to the mean load is lent to it, less and less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable, Floats

WARM_UP_MS: Final = 10_000.0
"""Two windows of the engine's histograms: then its speed has shown."""


class WarmUp:
    """Which endpoints are new, and how much of the mean load each is still taken to have."""

    __slots__ = ("_table", "new")

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self.new: dict[Endpoint, float | None] = {}
        """When each was first seen by a decision; empty most of the time."""

    def joined(self, endpoints: Iterable[Endpoint]) -> None:
        """They are new, and others were there before."""
        for endpoint in endpoints:
            self.new[endpoint] = None

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        self.new.pop(endpoint, None)

    def shares(self, now: float) -> Floats:
        """Per slot the share of the mean load that it has at least, 0 to 1."""
        shares = np.zeros(len(self._table))
        for endpoint, since in list(self.new.items()):
            if since is None:
                since = self.new[endpoint] = now
            left = 1.0 - (now - since) / WARM_UP_MS
            if left <= 0.0:
                del self.new[endpoint]
            else:
                shares[endpoint.slot] = min(left, 1.0)
        return shares
