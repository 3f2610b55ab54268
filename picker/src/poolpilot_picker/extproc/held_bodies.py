"""Request bodies that the picker holds, those that arrive in full duplex and those that wait: how much it may."""

from __future__ import annotations

from typing import Final

MIB: Final = 2**20
GUARANTEED_BYTES: Final = 2 * MIB
"""A pool may hold so much whatever the others hold."""


class HeldBodies:
    """Of one pool. While it is full no request begins to wait, and what has arrived of a body is placed as it is; the
    rest of it passes through. One body may exceed it."""

    __slots__ = ("_total", "bytes", "limit")

    def __init__(self, limit: int, total: HeldBodies | None = None) -> None:
        """`total`: of all pools together."""
        self.bytes = 0
        self.limit = limit
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
        return self.bytes >= self.limit

    def __bool__(self) -> bool:
        return True
