"""Consistent hashing of the prompt's beginning with bounded loads: at most 1.25 × the mean, overflow clockwise."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from xxhash import xxh64_intdigest

from poolpilot_lab.sim.baselines.base import Baseline, Stateless

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView

BOUND: Final = 1.25
POINTS: Final = 100
"""Of each endpoint on the ring."""
KEY_BLOCKS: Final = 8
"""The key is the prompt's beginning up to here: a system prompt, not the question."""


class BoundedHash(Stateless):
    """Key: the session where there is one, else the prompt's first blocks, else the request."""

    def __init__(self) -> None:
        self._generation = -1
        self._ring: list[tuple[int, int]] = []

    def _rebuild(self, view: DecisionView) -> None:
        self._generation = view.table.generation
        self._ring = sorted(
            (xxh64_intdigest(f"{endpoint.address}/{point}".encode()), endpoint.slot)
            for endpoint in view.table.wanted()
            for point in range(POINTS)
        )

    def decide(self, view: DecisionView) -> list[int]:
        """The first endpoint clockwise that is below the bound."""
        if view.table.generation != self._generation:
            self._rebuild(view)
        request, requests = view.request, view.table.requests
        hashes = request.prefix.hashes
        key = request.routing_key or str(hashes[min(KEY_BLOCKS, len(hashes)) - 1] if hashes else request.request_id)
        most = math.ceil(BOUND * (float(requests[view.mask].sum()) + 1.0) / max(1, int(view.mask.sum())))
        start = bisect_left(self._ring, (xxh64_intdigest(key.encode()), -1))
        for step in range(len(self._ring)):
            slot = self._ring[(start + step) % len(self._ring)][1]
            if view.mask[slot] and requests[slot] < most:
                return [slot]
        return [int(view.mask.argmax())]


BASELINE = Baseline(
    name="consistent-hash",
    source="Mirrokni, Thorup, Zadimoghaddam 2018; HAProxy hash-balance-factor 125, SGLang prefix_hash",
    build=lambda _: BoundedHash(),
)
