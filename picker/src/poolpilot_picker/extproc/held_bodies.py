"""Request bodies that wait, in full duplex, for their end: how much one pool of many may hold."""

from __future__ import annotations

from typing import Final

MIB: Final = 2**20
GUARANTEED_BYTES: Final = 2 * MIB
"""A pool may hold so much whatever the others hold."""


class HeldBodies:
    """Of one pool. A pool that is full places what has arrived of a body; the rest of it passes through."""

    __slots__ = ("_limit", "_total", "bytes")

    def __init__(self, limit: int, total: HeldBodies | None = None) -> None:
        """`total`: of all pools together."""
        self.bytes = 0
        self._limit = limit
        self._total = total

    def hold(self, more: int) -> None:
        """So many bytes more, or fewer."""
        self.bytes += more
        if self._total is not None:
            self._total.bytes += more

    @property
    def full(self) -> bool:
        """Nothing more should wait."""
        total = self._total
        if total is not None and total.full and self.bytes > GUARANTEED_BYTES:
            return True
        return self.bytes >= self._limit

    def __bool__(self) -> bool:
        return True
