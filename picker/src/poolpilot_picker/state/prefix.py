"""Which prompt prefixes each endpoint probably has in its KV cache, from our own placements. Read by every decision.

One dictionary maps a block hash to the set of slots that hold it (a bit mask); one LRU per slot bounds it to the size
of the engine's cache. Blocks enter tail first, as engines free them tail first: what is evicted are ends of prefixes.

So what a slot holds of a chain is always its beginning: a block is never evicted before those behind it, because every
chain with the one touches the other after it. Matching and inserting look for the end of that beginning by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.requests.request import PrefixChain
    from poolpilot_picker.state.endpoints import Floats

ASSUMED_TOKENS: Final = 300_000.0
"""Cache size of an engine that does not tell."""
LEAST_TOKENS: Final = 1.0
"""What a block counts at least, so that capacity bounds the number of blocks."""


class PrefixIndex:
    """Approximate index of resident prefix blocks. Capacities and matches in tokens."""

    def __init__(self, assumed_tokens: float = ASSUMED_TOKENS) -> None:
        self._assumed = assumed_tokens
        self._holders: dict[int, int] = {}
        self._lru: list[OrderedDict[int, float]] = []
        self._capacity: list[float] = []
        self._tokens: Floats = np.zeros(0)

    def __len__(self) -> int:
        """Distinct blocks known."""
        return len(self._holders)

    def resize(self, slots: int) -> None:
        """Follows the number of slots; a slot that goes must have been cleared."""
        known = len(self._lru)
        if slots < known:
            del self._lru[slots:], self._capacity[slots:]
            self._tokens = self._tokens[:slots]
        elif slots > known:
            self._lru += [OrderedDict() for _ in range(slots - known)]
            self._capacity += [self._assumed] * (slots - known)
            self._tokens = np.concatenate([self._tokens, np.zeros(slots - known)])

    def tokens(self) -> Floats:
        """Indexed tokens per slot, live."""
        return self._tokens

    def match(self, chain: PrefixChain) -> Floats:
        """Tokens of the chain's head that each slot holds, shape (slots,)."""
        matched = np.zeros(len(self._lru))
        hashes, ends, held_by = chain.hashes, chain.ends, self._holders.get
        if not hashes:
            return matched
        # Stretches of the chain (block, its holders, later block, its holders). Holders only get fewer along the chain:
        # where both ends have the same, nothing happens between them. Behind the last block there are none.
        stretches = [(0, held_by(hashes[0], 0), len(hashes), 0)]
        while stretches:
            first, holders, last, rest = stretches.pop()
            if holders == rest:
                continue
            if last - first == 1:
                lost = holders & ~rest
                while lost:
                    lowest = lost & -lost
                    matched[lowest.bit_length() - 1] = ends[first]
                    lost ^= lowest
                continue
            middle = (first + last) // 2
            between = held_by(hashes[middle], 0)
            stretches.append((first, holders, middle, between))
            stretches.append((middle, between, last, rest))
        return matched

    def insert(self, chain: PrefixChain, slot: int) -> None:
        """The chain's blocks are now the most recently used of the slot; the oldest fall out above its capacity."""
        capacity = self._capacity[slot]
        if not chain.hashes or capacity <= 0:
            return
        lru, holders, bit = self._lru[slot], self._holders, 1 << slot
        hashes, ends = chain.hashes, chain.ends
        held = bisect_left(range(len(hashes)), 1, key=lambda position: hashes[position] not in lru)
        # Tail first: what is behind the part that is held, then that part.
        added = 0.0
        for position in range(len(hashes) - 1, held - 1, -1):
            block = hashes[position]
            size = ends[position] - ends[position - 1] if position else ends[0]
            if size < LEAST_TOKENS:
                size = LEAST_TOKENS
            lru[block] = size
            added += size
            holders[block] = holders.get(block, 0) | bit
        touch = lru.move_to_end
        for block in reversed(hashes[:held]):
            touch(block)
        if added:
            self._tokens[slot] += added
            self._shrink(slot, capacity)

    def _shrink(self, slot: int, capacity: float) -> None:
        """Drops the least recently used blocks of a slot until the rest fits."""
        tokens = float(self._tokens[slot])
        if tokens <= capacity:
            return
        lru, holders, others = self._lru[slot], self._holders, ~(1 << slot)
        while lru and tokens > capacity:
            block, size = lru.popitem(last=False)
            tokens -= size
            left = holders[block] & others
            if left:
                holders[block] = left
            else:
                del holders[block]
        # An empty index holds exactly nothing: float sums do not drift over days.
        self._tokens[slot] = tokens if lru else 0.0

    def set_capacity(self, slot: int, tokens: float) -> None:
        """The engine's cache size became known; 0: it caches no prefixes."""
        if tokens != self._capacity[slot]:
            self._capacity[slot] = tokens
            self._shrink(slot, tokens)

    def forget(self, slot: int) -> None:
        """The engine restarted: nothing is resident."""
        self._shrink(slot, 0.0)

    def clear(self, slot: int) -> None:
        """The slot changed hands: nothing is resident, and the size is not known."""
        self.forget(slot)
        self._capacity[slot] = self._assumed
