"""How much prefill work a request would find ahead of it at each endpoint. Beside room, which bounds it.

The table's `free_at_ms` takes a step of decoding for every request, as a request would see it alone; engines prefill
several in one step. Where requests come faster than steps end, that is up to twice the true queue: engines bounded by
it prefill less than they could.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_picker.routing.cost_model import LEAST_CHUNK

if TYPE_CHECKING:
    from poolpilot_picker.state.columns import Floats
    from poolpilot_picker.state.endpoints import EndpointTable

SMOOTHING: Final = 0.02
FIRST_MS: Final = 30.0
"""What a request that waits in an engine is taken to need before any was placed."""
REMEMBERED: Final = 32
"""Requests placed at an endpoint whose work is known."""


class PrefillAhead:
    """Of one pool: the ends of the prefill work that was placed, with steps shared. Times in ms."""

    __slots__ = ("_ends", "_mean_ms", "_placed", "_sampled_ms", "_waiting_ms")

    def __init__(self) -> None:
        self._ends: Floats = np.zeros(0)
        self._sampled_ms: Floats = np.zeros(0)
        """Of the sample that `_waiting_ms` was made of."""
        self._waiting_ms: Floats = np.zeros(0)
        """Work of those that an engine said to be waiting: its newest, since it takes them as they come."""
        self._placed: list[deque[tuple[float, float]]] = []
        """Per slot: when, and how much work."""
        self._mean_ms = FIRST_MS

    def placed(self, table: EndpointTable, slot: int, uncached: float, prefill_ms: float, now: float) -> float:
        """A request was booked at `slot`, with `uncached` tokens that alone would take `prefill_ms`: in how many ms it
        will be prefilled."""
        if slot >= len(self._ends):
            self._reach(table)
        ends = self._ends
        end = ends.item(slot)
        if table.queued.item(slot):
            end = max(end, self._told(table, slot))
        if end > now:
            chunks = uncached / max(table.token_budget.item(slot) - table.inflight.item(slot), LEAST_CHUNK)
            step = table.columns.step(slot, 0.5)
            prefill_ms = max(0.0, prefill_ms - (math.ceil(chunks) - chunks) * step)
        else:
            end = now
        ends[slot] = end + prefill_ms
        self._placed[slot].append((now, prefill_ms))
        self._mean_ms += SMOOTHING * (prefill_ms - self._mean_ms)
        return end + prefill_ms - now

    def at(self, table: EndpointTable, now: float) -> Floats:
        """ms, per slot; negative where nothing is ahead."""
        if table.sharing is not None:
            # Of what other processes placed only the table knows.
            return table.free_at_ms - now
        if len(self._ends) < len(table):
            self._reach(table)
        count, sampled_ms = len(table), table.load_ms
        for slot in (sampled_ms != self._sampled_ms[:count]).nonzero()[0].tolist():
            self._told(table, slot)
        ends = np.maximum(self._ends[:count], sampled_ms + self._waiting_ms[:count])
        ahead: Floats = np.minimum(table.free_at_ms, ends) - now
        return ahead

    def _reach(self, table: EndpointTable) -> None:
        more = len(table) - len(self._ends)
        self._ends, self._waiting_ms = (np.concatenate([old, np.zeros(more)]) for old in (self._ends, self._waiting_ms))
        self._sampled_ms = np.concatenate([self._sampled_ms, np.full(more, np.nan)])
        self._placed += [deque(maxlen=REMEMBERED) for _ in range(more)]

    def _told(self, table: EndpointTable, slot: int) -> float:
        """When those will be done that an engine said to be waiting."""
        sampled_ms = table.load_ms.item(slot)
        if sampled_ms != self._sampled_ms.item(slot):
            waiting, work = int(table.queued.item(slot)), 0.0
            for when, needs in reversed(self._placed[slot] if waiting else ()):
                if not waiting:
                    break
                if when <= sampled_ms:
                    waiting -= 1
                    work += needs
            self._sampled_ms[slot], self._waiting_ms[slot] = sampled_ms, work + waiting * self._mean_ms
        return sampled_ms + self._waiting_ms.item(slot)
