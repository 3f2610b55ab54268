"""LoRA slots of the accelerator: which adapters are resident, least recently used first to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class AdapterSlots:
    """`count` slots; an adapter that a batch needs is resident before the batch runs."""

    __slots__ = ("_order", "count", "evictions", "loads")

    def __init__(self, count: int) -> None:
        self.count = count
        self.loads = 0
        self.evictions = 0
        self._order: dict[str, None] = {}

    @property
    def resident(self) -> tuple[str, ...]:
        """Resident adapters, least recently used first."""
        return tuple(self._order)

    def twin(self) -> AdapterSlots:
        """A copy that goes on for itself."""
        other = AdapterSlots(self.count)
        other.loads, other.evictions, other._order = self.loads, self.evictions, dict(self._order)
        return other

    def use(self, adapter: str, in_batch: Collection[str]) -> bool:
        """Makes `adapter` the most recently used; returns whether it had to be loaded.

        Never evicts an adapter of `in_batch`. The caller keeps a batch to at most `count` distinct adapters.
        """
        if adapter in self._order:
            del self._order[adapter]
            self._order[adapter] = None
            return False
        if len(self._order) >= self.count:
            victim = next(name for name in self._order if name not in in_batch)
            del self._order[victim]
            self.evictions += 1
        self._order[adapter] = None
        self.loads += 1
        return True

    def can_take(self, adapter: str, in_batch: Collection[str]) -> bool:
        """Whether `use` would find a slot that the batch does not need."""
        return adapter in self._order or len(self._order) < self.count or any(n not in in_batch for n in self._order)


def count_down(counts: dict[str, int], name: str | None) -> None:
    """One less of `name`, which goes when none is left; None is nothing."""
    if name is None:
        return
    if counts[name] == 1:
        del counts[name]
    else:
        counts[name] -= 1
