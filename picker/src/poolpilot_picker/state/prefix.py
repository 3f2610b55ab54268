"""Which prompt prefixes each endpoint probably has in its KV cache, from our own placements. Read by every decision.

One dictionary maps a block hash to the set of slots that hold it (a bit mask); one LRU per slot bounds it to the size of
the engine's cache. Blocks enter tail first, as engines free them tail first: what is evicted are ends of prefixes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.requests.request import PrefixChain
    from poolpilot_picker.state.endpoints import Floats


class PrefixIndex:
    """Approximate index of resident prefix blocks. Capacities and matches in tokens."""

    def __init__(self, default_capacity: float = 300_000.0) -> None:
        self._default = default_capacity
        self._holders: dict[int, int] = {}
        self._lru: list[OrderedDict[int, float]] = []
        self._capacity: list[float] = []
        self._tokens: list[float] = []

    def __len__(self) -> int:
        """Distinct blocks known."""
        return len(self._holders)

    def resize(self, slots: int) -> None:
        """Makes room for this many slots."""
        while len(self._lru) < slots:
            self._lru.append(OrderedDict())
            self._capacity.append(self._default)
            self._tokens.append(0.0)

    def tokens(self) -> Floats:
        """Indexed tokens per slot."""
        return np.array(self._tokens)

    def match(self, chain: PrefixChain, slots: int) -> Floats:
        """Tokens of the chain's head that each slot holds without a gap, shape (slots,)."""
        matched = np.zeros(slots)
        holders = self._holders
        candidates = -1
        blocks = 0
        for block in chain.hashes:
            still = candidates & holders.get(block, 0)
            if still != candidates:
                lost = candidates & ~still if blocks else 0
                if lost:
                    covered = chain.covered(blocks)
                    while lost:
                        lowest = lost & -lost
                        matched[lowest.bit_length() - 1] = covered
                        lost ^= lowest
                candidates = still
                if not candidates:
                    break
            blocks += 1
        if blocks and candidates > 0:
            covered = chain.covered(blocks)
            while candidates:
                lowest = candidates & -candidates
                matched[lowest.bit_length() - 1] = covered
                candidates ^= lowest
        return matched

    def insert(self, chain: PrefixChain, slot: int) -> None:
        """The chain's blocks are now the most recently used of the slot; the oldest fall out above its capacity."""
        lru, holders, bit = self._lru[slot], self._holders, 1 << slot
        tokens = self._tokens[slot]
        for position in range(len(chain.hashes) - 1, -1, -1):
            block = chain.hashes[position]
            if block in lru:
                lru.move_to_end(block)
                continue
            size = chain.covered(position + 1) - chain.covered(position)
            lru[block] = size
            tokens += size
            holders[block] = holders.get(block, 0) | bit
        capacity = self._capacity[slot]
        while tokens > capacity and lru:
            block, size = lru.popitem(last=False)
            tokens -= size
            self._forget(block, bit)
        self._tokens[slot] = tokens if lru else 0.0

    def _forget(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]

    def set_capacity(self, slot: int, tokens: float) -> None:
        """The engine's cache size became known."""
        self._capacity[slot] = tokens if tokens > 0 else self._default

    def clear(self, slot: int) -> None:
        """The engine restarted or the slot changed hands: nothing is resident."""
        bit = 1 << slot
        for block in self._lru[slot]:
            self._forget(block, bit)
        self._lru[slot].clear()
        self._tokens[slot] = 0.0
        self._capacity[slot] = self._default
