"""Which prompt prefixes each endpoint probably has in its KV cache, from our own placements. Read by every decision.

One dictionary maps a block hash to the set of slots that hold it (a bit mask); one LRU per slot bounds it to the size
of the engine's cache. Blocks enter tail first, as engines free them tail first: what is evicted are ends of prefixes.

So what a slot holds of a chain is always its beginning: a block is never evicted before those behind it, because every
chain with the one touches the other after it. Matching and inserting look for the end of that beginning by bisection.

`ReferencePrefixIndex` is plain and large; `compiled/_prefix.pyx` gives the same answers in a tenth of the memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from poolpilot_picker import compiled

if TYPE_CHECKING:
    from poolpilot_picker.requests.request import PrefixChain
    from poolpilot_picker.state.columns import Floats

ASSUMED_TOKENS: Final = 300_000.0
"""Cache size of an engine that does not tell."""
LEAST_TOKENS: Final = 1.0
"""What a block counts at least, so that capacity bounds the number of blocks."""
MOST_TOKENS: Final = float(1 << 25)
UNITS: Final = 64
"""Of a token: sizes of blocks are whole numbers of them, so that their sums are exact."""
FIRST_GAP: Final = 50.0
"""Insertions between two uses of a prefix, before any was seen."""
GAP_SMOOTHING: Final = 0.03
"""Weight of the newest use, where the whole prompt was there."""


class PrefixIndex(Protocol):
    """Approximate index of resident prefix blocks. Capacities and matches in tokens.

    A block's size is what the first chain with it said; it is forgotten when no slot holds the block any more.
    """

    def __len__(self) -> int:
        """Distinct blocks known."""
        ...

    @property
    def entries(self) -> int:
        """Blocks known at slots: a block held by three slots counts three."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes in use, about."""
        ...

    def resize(self, slots: int) -> None:
        """Follows the number of slots; a slot that goes must have been cleared."""
        ...

    def tokens(self) -> Floats:
        """Indexed tokens per slot, live until the next `resize`."""
        ...

    def reuse(self) -> Floats:
        """How likely what each slot would drop next is asked for again, 0 to 1, shape (slots,), until the next call.

        gap ÷ (gap + age), with the gap between two uses of a prefix, learned, and the age of the slot's oldest block,
        both in insertions: what has not been used for many gaps will hardly be. That is so where gaps are spread
        widely (Pareto); where they are alike it is too much for what is young.
        """
        ...

    def capacity(self, slot: int) -> float:
        """Tokens a slot may hold."""
        ...

    def held(self, slot: int) -> list[int]:
        """Hashes of a slot's blocks, least recently used first."""
        ...

    def match(self, chain: PrefixChain, most: float = math.inf) -> Floats:
        """Tokens of the chain's head that each slot holds, at most `most`, shape (slots,)."""
        ...

    def insert(self, chain: PrefixChain, slot: int) -> None:
        """The chain's blocks are now the most recently used of the slot; the oldest fall out above its capacity."""
        ...

    def set_capacity(self, slot: int, tokens: float) -> None:
        """The engine's cache size became known; 0: it caches no prefixes."""
        ...

    def forget(self, slot: int) -> None:
        """The engine restarted: nothing is resident."""
        ...

    def clear(self, slot: int) -> None:
        """The slot changed hands: nothing is resident, and the size is not known."""
        ...


def prefix_index(assumed_tokens: float = ASSUMED_TOKENS) -> PrefixIndex:
    """An empty index of the kind in force."""
    core = compiled.in_force
    return ReferencePrefixIndex(assumed_tokens) if core is None else core.prefix_index(assumed_tokens)


def _units(size: float) -> int:
    """A block's size in units."""
    if not size > LEAST_TOKENS:
        return UNITS
    return math.floor(min(size, MOST_TOKENS) * UNITS + 0.5)


class ReferencePrefixIndex:
    """The index in dictionaries."""

    def __init__(self, assumed_tokens: float = ASSUMED_TOKENS) -> None:
        self._assumed = assumed_tokens
        self._holders: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._lru: list[OrderedDict[int, int]] = []
        """Block → insertion that used it last."""
        self._insertions = 0
        self._gap = FIRST_GAP
        self._units: list[int] = []
        self._capacity: list[float] = []
        self._tokens: Floats = np.zeros(0)

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def entries(self) -> int:
        """Blocks known at slots: a block held by three slots counts three."""
        return sum(map(len, self._lru))

    @property
    def memory_bytes(self) -> int:
        """Bytes in use, about: as measured for 100 slots."""
        return 90 * self.entries + 220 * len(self._holders)

    def resize(self, slots: int) -> None:
        """Follows the number of slots; a slot that goes must have been cleared."""
        known = len(self._lru)
        for slot in range(slots, known):
            self.forget(slot)
        del self._lru[slots:], self._capacity[slots:], self._units[slots:]
        self._lru += [OrderedDict() for _ in range(slots - known)]
        self._capacity += [self._assumed] * (slots - known)
        self._units += [0] * (slots - known)
        self._tokens = np.concatenate([self._tokens[:slots], np.zeros(max(0, slots - known))])

    def tokens(self) -> Floats:
        """Indexed tokens per slot, live until the next `resize`."""
        return self._tokens

    def reuse(self) -> Floats:
        """How likely what each slot would drop next is asked for again, 0 to 1, shape (slots,)."""
        oldest = [next(iter(lru.values()), -math.inf) for lru in self._lru]
        return self._gap / (self._gap + self._insertions - np.array(oldest))

    def capacity(self, slot: int) -> float:
        """Tokens a slot may hold."""
        return self._capacity[slot]

    def held(self, slot: int) -> list[int]:
        """Hashes of a slot's blocks, least recently used first."""
        return list(self._lru[slot])

    def match(self, chain: PrefixChain, most: float = math.inf) -> Floats:
        """Tokens of the chain's head that each slot holds, at most `most`, shape (slots,)."""
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
                    matched[lowest.bit_length() - 1] = min(ends[first], most)
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
        lru, holders, sizes, bit = self._lru[slot], self._holders, self._sizes, 1 << slot
        hashes, ends = chain.hashes, chain.ends
        held = bisect_left(range(len(hashes)), 1, key=lambda position: hashes[position] not in lru)
        self._insertions += 1
        if held and 0.0 < ends[held - 1] <= ends[-1] < math.inf:
            gap, share = self._insertions - lru[hashes[held - 1]], ends[held - 1] / ends[-1]
            self._gap += GAP_SMOOTHING * share * (gap - self._gap)
        # Tail first: what is behind the part that is held, then that part.
        added = 0
        for position in range(len(hashes) - 1, held - 1, -1):
            block = hashes[position]
            others = holders.get(block, 0)
            if not others:
                sizes[block] = _units(ends[position] - ends[position - 1] if position else ends[0])
            lru[block] = self._insertions
            added += sizes[block]
            holders[block] = others | bit
        touch = lru.move_to_end
        for block in reversed(hashes[:held]):
            lru[block] = self._insertions
            touch(block)
        if added:
            self._units[slot] += added
            self._shrink(slot, capacity)

    def _shrink(self, slot: int, capacity: float) -> None:
        """Drops the least recently used blocks of a slot until the rest fits."""
        units = self._units[slot]
        lru, holders, sizes, others = self._lru[slot], self._holders, self._sizes, ~(1 << slot)
        while lru and units / UNITS > capacity:
            block, _ = lru.popitem(last=False)
            units -= sizes[block]
            left = holders[block] & others
            if left:
                holders[block] = left
            else:
                del holders[block], sizes[block]
        self._units[slot] = units
        self._tokens[slot] = units / UNITS

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
