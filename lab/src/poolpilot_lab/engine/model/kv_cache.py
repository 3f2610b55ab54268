"""KV blocks of one engine: allocation, prefix cache and eviction, as counts and keys (no contents).

An unreferenced block stays in the cache until it is reused, least recently freed first. A sequence frees its blocks
last block first, so that the tail of a prefix is evicted before its head.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from poolpilot_lab.engine.model.sequence import UNNAMED

if TYPE_CHECKING:
    from collections.abc import Sequence


class BlockCache:
    """`total` blocks. A block is referenced by sequences, or free; a free block may still be found by its key."""

    __slots__ = (
        "_free",
        "_last_unnamed",
        "_next_unnamed",
        "_references",
        "_tail_is_unnamed",
        "evictions",
        "free",
        "kept",
        "total",
    )

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        """blocks that no sequence references, cached ones included"""
        self.kept = 0
        """free blocks that can still be found by key"""
        self.evictions = 0
        self._references: dict[int, int] = {}
        # Free blocks in the order in which they will be reused. A non-negative key is one cached block; a negative key
        # stands for a run of blocks without contents worth keeping, its value is their number.
        self._free: OrderedDict[int, int] = OrderedDict({-1: total}) if total else OrderedDict()
        self._next_unnamed = -2
        self._last_unnamed = -1
        self._tail_is_unnamed = total > 0

    def twin(self) -> BlockCache:
        """A copy that goes on for itself."""
        other = BlockCache(self.total)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._references, other._free = self._references.copy(), self._free.copy()
        return other

    @property
    def used(self) -> int:
        """Blocks that sequences reference."""
        return self.total - self.free

    @property
    def cached(self) -> int:
        """Blocks that can be found by key, referenced or not."""
        return len(self._references) + self.kept

    def __contains__(self, key: int) -> bool:
        return key in self._references or key in self._free

    def match(self, keys: Sequence[int], limit: int) -> int:
        """How many of the first `limit` keys are cached, counted from the first without a gap."""
        references, free = self._references, self._free
        for position in range(min(limit, len(keys))):
            key = keys[position]
            if key not in references and key not in free:
                return position
        return min(limit, len(keys))

    def unreferenced(self, keys: Sequence[int], count: int) -> int:
        """How many of the first `count` cached keys are free: acquiring them takes as many free blocks."""
        references = self._references
        return sum(1 for position in range(count) if keys[position] not in references)

    def acquire(self, keys: Sequence[int], count: int) -> list[int]:
        """References the first `count` keys, which are cached; returns the block table they make."""
        references, free = self._references, self._free
        table = list(keys[:count])
        for key in table:
            if key in references:
                references[key] += 1
            else:
                del free[key]
                self.free -= 1
                self.kept -= 1
                references[key] = 1
        return table

    def allocate(self, count: int) -> None:
        """Takes `count` free blocks, evicting the least recently freed; the caller checked `free`."""
        free = self._free
        self.free -= count
        assert self.free >= 0, "allocated more blocks than there are"
        while count:
            key = next(iter(free))
            if key >= 0:
                del free[key]
                self.evictions += 1
                self.kept -= 1
                count -= 1
                continue
            run = free[key]
            if run > count:
                free[key] = run - count
                return
            del free[key]
            if key == self._last_unnamed:
                self._tail_is_unnamed = False
            count -= run

    def next_evicted(self, count: int) -> list[int]:
        """The keys that would be evicted, in this order, if `count` blocks were allocated now."""
        keys: list[int] = []
        for key, run in self._free.items():
            if count <= 0:
                break
            if key >= 0:
                keys.append(key)
            count -= run
        return keys

    def name(self, key: int) -> bool:
        """Makes one allocated block findable under `key`; False when another block already is."""
        if key in self._references or key in self._free:
            return False
        self._references[key] = 1
        return True

    def release(self, table: list[int]) -> None:
        """Gives back the blocks of a sequence, last one first, and empties its table."""
        references, free = self._references, self._free
        for key in reversed(table):
            if key == UNNAMED:
                if self._tail_is_unnamed:
                    free[self._last_unnamed] += 1
                else:
                    self._last_unnamed = self._next_unnamed
                    self._next_unnamed -= 1
                    free[self._last_unnamed] = 1
                    self._tail_is_unnamed = True
                self.free += 1
                continue
            count = references[key]
            if count > 1:
                references[key] = count - 1
            else:
                del references[key]
                free[key] = 1
                self._tail_is_unnamed = False
                self.free += 1
                self.kept += 1
        table.clear()

    def forget(self) -> None:
        """Empties the prefix cache of free blocks (a reset); referenced blocks stay."""
        self.kept = 0
        kept = self.free
        self._free = OrderedDict({self._next_unnamed: kept}) if kept else OrderedDict()
        self._last_unnamed = self._next_unnamed
        self._next_unnamed -= 1
        self._tail_is_unnamed = kept > 0
